# Performs the action in the request field `Attempt` and responds with its result.
#
# The words are those of `hostile.py`: `read`, `write`, `create` and `list` a path, `link` one, `call` the
# kernel, speak to a socket (`unix`, `abstract`, `tcp`), write to every socket that it has (`raw`).

require "socket"

def argument(word)
  kind, value = word.split(":", 2)
  case kind
  when "buffer" then "x" * value.to_i # `syscall` takes no NUL in texts
  when "text" then value
  else word.to_i
  end
end

def speak(client, request)
  client.write(request.tr("+", " ").gsub("\\r", "\r").gsub("\\n", "\n"))
  status = client.readpartial(64).split
  # A refusal is no success.
  raise Errno::EPERM if %w[401 403].include?(status[1])

  status.inspect
ensure
  client.close
end

def links
  Dir.children("/proc/self/fd").map { |number| "/proc/self/fd/#{number}" }
     .select { |link| File.symlink?(link) }
end

$VERBOSE = nil
ACTIONS = {
  "read" => ->(path) { File.open(path, "rb") { |file| "#{file.read(16)&.size} bytes" } },
  "write" => ->(path) { File.open(path, "ab") { |file| file.syswrite("x") } },
  "create" => ->(path) { File.open(path, File::CREAT | File::EXCL | File::WRONLY, 0o600) },
  "list" => ->(path) { Dir.children(path).inspect },
  "link" => ->(path) { File.readlink(path) },
  "call" => ->(*words) { syscall(*words.map { |word| argument(word) }) },
  "unix" => ->(path, request) { speak(UNIXSocket.new(path), request) },
  "abstract" => ->(name) { speak(UNIXSocket.new("\0#{name}"), "x") },
  "tcp" => ->(port, request) { speak(TCPSocket.new("127.0.0.1", port.to_i), request) },
  "leaked" => lambda do |word|
    links.map { |link| File.readlink(link) }.find { |name| name.include?(word) } ||
      raise(Errno::EBADF)
  end,
  "raw" => lambda do |text|
    links.select { |link| File.socket?(link) }.each do |link|
      socket = IO.for_fd(File.basename(link).to_i, "wb", autoclose: false)
      socket.syswrite([text].pack("H*"))
    rescue SystemCallError
      next
    end
    "written"
  end
}.freeze

run(lambda do |env|
  action, *words = env.fetch("HTTP_ATTEMPT", "call 39").split(" ")
  text = begin
    "DONE: #{ACTIONS.fetch(action).call(*words)}"
  rescue SystemCallError => e
    "refused: #{e.class.name.split("::").last}"
  end
  [200, {}, [text]]
end)
