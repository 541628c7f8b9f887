"""The Flower ClientApp of a site, which passes each message to the resident trainer and returns its answer.

Flower starts this app for every message, so it imports nothing heavy. The trainer keeps torch, the model and the data
in memory.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from offbeat.deploy.flower_payload import unwrap, wrap
from offbeat.deploy.local_socket import ask

TRAINER_START_SECONDS = 120.0  # a trainer imports torch and loads its data

app = ClientApp()


@app.query()
def answer_message(message: Message, context: Context) -> Message:
    """Return the trainer's reply to a message of the server."""
    reply = ask(str(context.node_config["socket"]), unwrap(message.content), TRAINER_START_SECONDS)
    return Message(wrap(reply), reply_to=message)
