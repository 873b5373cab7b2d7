"""Reading JSON files."""
import json
import os

from common.errors import InputError


def read(path):
    """What a file holds; None if there is none."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def read_object(path, missing, remedy):
    """The same of an object; `missing` if there is no such file."""
    if not os.path.exists(path):
        return missing
    value = read(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object; {remedy}")
    return value
