"""The packages that tokenizers need."""
from common.environment import Packages

TOKENIZERS = Packages("prepare", requirements=("tokenizers>=0.15,<1", "jinja2>=3.1,<4"),
                      modules=("tokenizers", "jinja2"),
                      otherwise="leave the tokenizer out to prepare bytes")
TABLES = Packages("prepare-tables", requirements=("pyarrow>=14", *TOKENIZERS.requirements),
                  modules=("pyarrow", *TOKENIZERS.modules), otherwise="save the .parquet as .jsonl")
