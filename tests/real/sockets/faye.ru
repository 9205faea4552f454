# An echo by faye-websocket; a thread of EventMachine owns the connections.

require "faye/websocket"

run lambda { |env|
  socket = Faye::WebSocket.new(env)
  socket.on(:message) { |event| socket.send(event.data) }
  socket.rack_response
}
