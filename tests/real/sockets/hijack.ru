# The ways in which Rack applications use a connection that they have taken over.

require "digest"

def accept(env)
  guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
  Digest::SHA1.base64digest(env["HTTP_SEC_WEBSOCKET_KEY"] + guid)
end

def switch(env)
  "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
    "Sec-WebSocket-Accept: #{accept(env)}\r\n\r\n"
end

# Echoes bytes on its own thread: clients' frames are masked, so this is no WebSocket.
def echo(io)
  Thread.new do
    loop { io.write(io.readpartial(65_536)) }
  rescue IOError, SystemCallError
    nil
  ensure
    io.close
  end
end

full = lambda do |env|
  raise "no hijack" unless env["rack.hijack?"]

  io = env["rack.hijack"].call
  raise "another" unless env["rack.hijack_io"].equal?(io)

  io.write(switch(env))
  echo(io)
  [-1, {}, []]
end

# Writes the whole response itself, in the old way of streaming.
raw = lambda do |env|
  io = env["rack.hijack"].call
  Thread.new do
    io.write("HTTP/1.1 202 Mine\r\nContent-Type: text/plain\r\nX-Own: yes\r\n\r\n")
    3.times { |at| io.write("line #{at}\n") }
    io.close
  end
  [-1, {}, []]
end

# Switches protocols with a head sent by the server, and with a body as in Rack 3 if `is_body`. The
# stream is echoed where the call is, on a thread or a fiber.
switch_partial = lambda do |env, is_body|
  stream = lambda do |io|
    loop { io.write(io.readpartial(65_536)) }
  rescue IOError, SystemCallError
    nil
  ensure
    io.close
  end
  fields = { "upgrade" => "websocket", "connection" => "Upgrade" }
  fields["sec-websocket-accept"] = accept(env)
  is_body ? [101, fields, stream] : [101, fields.merge("rack.hijack" => stream), []]
end

partial = lambda do |_env|
  stream = lambda do |io|
    Thread.new do
      3.times { |at| io.write("part #{at}\n") }
      io.close
    end
  end
  [200, { "content-type" => "text/plain", "rack.hijack" => stream }, []]
end

# Dies within a response of unknown length; with `heir` a child still has the socket.
dies = lambda do |env, heir: false|
  io = env["rack.hijack"].call
  io.write("HTTP/1.1 200 OK\r\n\r\nhalf of it")
  fork { sleep(30) } if heir
  Process.kill("KILL", Process.pid)
end

hangs_behind = lambda do |env|
  env["rack.hijack"].call.write(switch(env))
  sleep
end

paths = {
  "/dies" => dies,
  "/dies_with_heir" => ->(env) { dies.call(env, heir: true) },
  "/hangs" => ->(env) { env["rack.hijack"].call && sleep },
  "/hangs_behind" => hangs_behind,
  "/full" => full,
  "/raw" => raw,
  "/partial" => partial,
  "/switch" => ->(env) { switch_partial.call(env, false) },
  "/switch_body" => ->(env) { switch_partial.call(env, true) },
  "/silent" => ->(env) { env["rack.hijack"].call.close || [-1, {}, []] },
  "/nonsense" => ->(env) { (env["rack.hijack"].call << "hello\r\n\r\n").close || [-1, {}, []] },
  "/raises" => ->(env) { env["rack.hijack"].call.close || raise("behind a hijack") },
  "/state" => lambda do |_env|
    GC.start
    [200, { "content-type" => "text/plain" }, ["#{Process.pid} #{Dir.children("/proc/self/fd").size}"]]
  end
}
run ->(env) { paths.fetch(env["PATH_INFO"]).call(env) }
