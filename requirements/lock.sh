#!/usr/bin/env bash
# Rewrites the hash-pinned locks: one resolution for everything (dev.txt), then each extra constrained to it, so that
# the tests' environment and the images never disagree on a version. No index address is written.
set -euo pipefail
cd "$(dirname "$0")/.."
common=(--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package pagoda --quiet)
# Give e.g. --exclude-newer 2026-11-01 where an index offers versions that it does not serve yet.
.venv/bin/uv pip compile pyproject.toml --upgrade --extra dev "${common[@]}" "$@" -o requirements/dev.txt
for extra in daemon operator gateway fetch cli; do
  .venv/bin/uv pip compile pyproject.toml --extra "$extra" "${common[@]}" -c requirements/dev.txt -o "requirements/$extra.txt"
done
# Each third-party suite has an environment of its own (tests/support/suite/environments.py). Torch, where a suite needs it, has the
# version of dev.txt: its gigabytes are in uv's cache then.
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
sed -nE 's/ *\\$//; /^(torch|triton|cuda-|nvidia-)[a-z0-9-]*==/p' requirements/dev.txt > "$pins"
npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund --prefix requirements/clients/openai-node
for suite in requirements/clients/*.in; do
  .venv/bin/uv pip compile "$suite" --upgrade "${common[@]}" "$@" -c "$pins" -o "${suite%.in}.txt"
done
