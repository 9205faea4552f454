import chainlit


@chainlit.on_message
async def answer(message):
    await chainlit.Message(content=f"Hello from Chainlit: {message.content}").send()
