"""Do the main job once: `make serve` on the embedded model, one chat answer checked, server down."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER = "The capital of France is Paris."
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0


def ask(url: str) -> str:
    """Return the greedy answer of the chat API at `url` to QUESTION."""
    body = {"model": "smollm2", "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def main() -> int:
    """Return 0 when the answer is right and the server stops cleanly."""
    command = ["make", "serve", "ARGS=server.port=0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    watchdog = threading.Timer(START_TIMEOUT_S, os.killpg, (server.pid, signal.SIGKILL))
    watchdog.start()
    assert server.stdout is not None
    url, answer = None, None
    for line in server.stdout:
        print(line, end="")
        found = re.search(r"curl .*?(http://127\.0\.0\.1:\d+)", line)
        if found and url is None:
            url = found[1]
            answer = ask(url)
            os.killpg(server.pid, signal.SIGTERM)
    code = server.wait(STOP_TIMEOUT_S)
    watchdog.cancel()
    print(f"smoke: url={url} answer={answer!r} exit={code}")
    return 0 if answer is not None and answer.strip() == ANSWER else 1


if __name__ == "__main__":
    sys.exit(main())
