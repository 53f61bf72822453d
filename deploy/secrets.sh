#!/bin/sh
# Create certificates and tokens for compose.yaml: a certificate authority, and one certificate and one token
# for each client. Existing files are kept. To replace one, remove it and run this script again.
#
#   deploy/secrets.sh [FOLDER [ENV_FILE]]      # defaults: deploy/secrets and .env
#
# Containers run as you, or as user 10001 if you are root, and own the files that they read. Files named
# `operator` are for you. Only this script uses `ca.key`; no container has it.
set -eu
folder=${1:-deploy/secrets}
settings=${2:-.env}
assay=${ASSAY:-assay}
umask 077
mkdir -p "$folder"

clients='operator health mcp api'

# Run a command. If it fails, print its stderr and exit.
quietly() {
    said=$("$@" 2>&1 >&3) || { echo "$said" >&2; exit 1; }
}

if [ ! -e "$folder/server.crt" ]; then
    set -- --server executor --server localhost --server 127.0.0.1
    for client in $clients; do set -- "$@" --client "$client"; done
    quietly "$assay" certs make --out "$folder" "$@" 3>/dev/null
    chmod 644 "$folder"/*.crt
fi
for client in $clients; do
    if [ ! -e "$folder/$client.token" ]; then
        quietly "$assay" executor token "$client" --token-file "$folder/executor-tokens" \
            3>"$folder/$client.token"
    fi
done
if [ ! -e "$folder/operator.mcp-token" ]; then
    export ASSAY_MCP__TOKEN_FILE="$folder/mcp-tokens"
    quietly "$assay" mcp token operator 3>"$folder/operator.mcp-token"
fi

if [ ! -e "$folder/provider.keys" ]; then
    cat >"$folder/provider.keys" <<'KEYS'
# API keys of model providers, one per line, and the address of other models.
#ANTHROPIC_API_KEY=...
#ASSAY_BASE_URL=http://models.example.org/v1
KEYS
fi

user=$(id -u) group=$(id -g)
if [ "$user" -eq 0 ]; then
    user=10001 group=10001
    for name in server.key executor-tokens mcp-tokens \
        client-health.key client-mcp.key client-api.key health.token mcp.token api.token provider.keys; do
        chown "$user:$group" "$folder/$name"
    done
    chmod 711 "$folder"
fi
cat >"$settings" <<SETTINGS
# The user that containers run as; written by deploy/secrets.sh.
ASSAY_UID=$user
ASSAY_GID=$group
SETTINGS
echo "certificates and tokens are in $folder; containers run as $user:$group ($settings)"
