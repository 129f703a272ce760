#!/usr/bin/env bash
# Makes build/venv with the Python packages that the tests need, or leaves it as it is when it was
# made from the same list.
set -euo pipefail
cd "$(dirname "$0")/.."
list=tests/e2e/requirements.txt
venv=build/venv
stamp=$venv/made-from
mkdir -p build
if [ -f $stamp ] && cmp -s $list $stamp && $venv/bin/python -c '' 2>/dev/null; then exit 0; fi
echo "Making $venv"
rm -rf $venv
python3 -m venv $venv
$venv/bin/pip install --quiet --disable-pip-version-check --requirement $list
cp $list $stamp
