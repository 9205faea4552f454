# An echo by faye-websocket, whose connections belong to a thread of EventMachine.

require "faye/websocket"

run lambda { |env|
  socket = Faye::WebSocket.new(env)
  socket.on(:message) { |event| socket.send(event.data) }
  socket.rack_response
}
