"""OpenAI's Responses API, as another form of a chat: requests are converted into chats, answers are written as items. It keeps nothing."""
