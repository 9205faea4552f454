# An echo by faye-websocket, whose connections a thread of EventMachine has.

require "faye/websocket"

run lambda { |env|
  socket = Faye::WebSocket.new(env)
  socket.on(:message) { |event| socket.send(event.data) }
  socket.rack_response
}
