#!/bin/sh
# run_pytest.sh PYTHON TEST_FILE: runs one file of end-to-end tests, or says what is missing.
if ! "$1" -c 'import anthropic, grpc, jsonschema, langchain_openai, openai, pytest' 2>/dev/null; then
  echo "$1 is not a Python with the packages of tests/e2e/requirements.txt." >&2
  echo "Make it with: scripts/make_venv.sh (or set -DQUARTET_PYTHON=... at configure time)" >&2
  exit 1
fi
exec "$1" -m pytest -q -p no:cacheprovider --color=no "$2"
