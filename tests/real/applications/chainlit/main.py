from pathlib import Path

from chainlit.utils import mount_chainlit
from fastapi import FastAPI

app = FastAPI()
mount_chainlit(app=app, target=str(Path(__file__).with_name("chat.py")), path="/chat")
