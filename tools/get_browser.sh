#!/usr/bin/env bash
# Puts a Chromium where the tests of the HTML report find one. Never fails: without a browser those tests are skipped
# and say so. Takes Debian's or Ubuntu's package where it may (as root), else what playwright brings.
set -u
cd "$(dirname "$0")/.."

for name in chromium chromium-browser google-chrome; do
  command -v "$name" > /dev/null 2>&1 && exit 0
done
compgen -G "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}/chromium-*" > /dev/null && exit 0

apt=(timeout 150 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60)
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  install=("${apt[@]}" install -y --no-install-recommends chromium fonts-dejavu-core)
  { "${install[@]}" || { "${apt[@]}" update && "${install[@]}"; }; } > /dev/null 2>&1 && exit 0
elif [ -x .venv/bin/playwright ]; then
  timeout 150 .venv/bin/playwright install chromium > /dev/null 2>&1 && exit 0
fi
echo "No browser could be installed: the tests of the report in a browser will be skipped."
exit 0
