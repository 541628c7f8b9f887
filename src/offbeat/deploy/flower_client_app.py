"""What Flower starts at a site for each message: it hands the message to the resident trainer, which has torch, the
model and the data in memory, and carries the answer back. It imports nothing heavy: it is started anew every time.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from offbeat.deploy.flower_payload import unwrap, wrap
from offbeat.deploy.local_socket import ask

PATIENCE = 120.0  # seconds for a trainer that is starting: it imports torch and loads its data

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    reply = ask(str(context.node_config["socket"]), unwrap(message.content), PATIENCE)
    return Message(wrap(reply), reply_to=message)
