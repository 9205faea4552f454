# frozen_string_literal: true

# A path for each thing that the Rack SPEC allows or forbids.
$closed = []
$go = Queue.new
$here = Queue.new

# A body that counts how often it is closed.
class Body
  def initialize(path, &block)
    @path = path
    @block = block
  end

  def each(&block) = @block.call(block)
  def close = $closed << @path
end

class ToPath
  def initialize(path, sent) = (@path, @sent = path, sent)
  def each = yield(File.binread(@sent))
  def to_path = @path
  def close = $closed << "to_path"
end

class ToAry
  def to_ary = ["a", "bc"]
  def each = raise("not asked")
  def close = $closed << "to_ary"
end

def plain(more = {}) = { "Content-Type" => "text/plain" }.merge(more)
def length(number) = plain("Content-Length" => number.to_s)
def body(env, *chunks) = Body.new(env["PATH_INFO"]) { |out| chunks.each { |c| c.respond_to?(:call) ? c.call : out.call(c) } }
def fail! = -> { raise ArgumentError, "deliberate" }

APP = lambda do |env|
  ok = ->(body, headers = plain) { [200, headers, body] }
  path = env["PATH_INFO"]
  case path
  # Allowed.
  when "/" then ok[["hello"]]
  when "/pid" then ok[[Process.pid.to_s]]
  when "/closed" then ok[[$closed.join(" ")]]
  when "/empty-array" then ok[[]]
  when "/array" then ok[["a", "", "bc"]]
  when "/encodings" then ok[["caf\u00e9", "\xE9".b, "x".encode("UTF-16LE")]]
  when "/each" then ok[body(env, "a", "", "bc")]
  when "/each-empty" then ok[body(env)]
  when "/declared" then ok[body(env, "a", "bc"), length(3)]
  when "/to-ary" then ok[ToAry.new]
  when "/enumerator" then ok[%w[a bc].each]
  when "/status-string" then ["201", plain, ["made"]]
  when "/large" then ok[["y" * 3_000_000]]
  when "/no-content" then [204, {}, ["dropped"]]
  when "/not-modified" then [304, {}, ["dropped"]]
  when "/cookies" then ok[["x"], plain("Set-Cookie" => "a=1\nb=2")]
  when "/hop" then ok[["x"], plain("Connection" => "close", "Transfer-Encoding" => "chunked")]
  when "/rack-header" then ok[["x"], plain("rack.private" => "X-Evil")]
  when "/to-path" then ok[ToPath.new(__FILE__, "unused")]
  when "/to-path-length" then ok[ToPath.new(__FILE__, "unused"), length(7)]
  when "/to-path-missing" then ok[ToPath.new("/nonexistent", __FILE__)]
  when "/call" then ok[->(stream) { stream.write("a", "b"); stream << "c"; stream.close }]
  when "/echo" then ok[["#{env["CONTENT_LENGTH"]}:", env["rack.input"].read]]
  when "/rewind"
    input = env["rack.input"]
    first = [input.gets, input.read(2)]
    input.rewind
    ok[[[first, input.each.to_a, input.read, input.read(1)].inspect]]
  when "/multithread"
    $here << 1
    Thread.pass until $here.size >= 4
    ok[[env["rack.multithread"].to_s]]
  when "/waiting" then ok[body(env, "one", -> { $go.pop }, "two")]
  when "/go" then $go << 1; ok[[]]
  when "/endless" then ok[Body.new(path) { |out| loop { out.call("x" * 10_000) } }]
  when "/errors" then env["rack.errors"].puts("said to rack.errors"); ok[[]]
  # Forbidden.
  when "/raise" then raise ArgumentError, "deliberate"
  when "/raise-each" then ok[body(env, fail!)]
  when "/throw" then throw :nowhere
  when "/exit" then exit(3)
  when "/no-memory" then raise NoMemoryError, "deliberate"
  when "/nil" then nil
  when "/two" then [200, plain]
  when "/body-nil" then ok[nil]
  when "/body-number" then ok[[7]]
  when "/each-number" then ok[body(env, 7)]
  when "/status-word" then ["ok", plain, []]
  when "/status-interim" then [100, {}, []]
  when "/status-large" then [999, {}, []]
  when "/headers-nil" then [200, nil, []]
  when "/name-number" then ok[["x"], { 1 => "x" }]
  when "/value-return" then ok[["x"], { "X-A" => "1\r\nX-Evil: 1" }]
  when "/value-return-only" then ok[["x"], { "X-A" => "1\rX-Evil: 1" }]
  when "/value-nul" then ok[["x"], { "X-A" => "1\0X-Evil\0" + "1" }]
  when "/name-inject" then ok[["x"], { "X-Evil: 1\r\nX-A" => "1" }]
  when "/name-newline" then ok[["x"], { "X-Evil\nX-A" => "1" }]
  when "/name-space" then ok[["x"], { "X-Evil A" => "1" }]
  when "/name-empty" then ok[["x"], { "" => "1" }]
  when "/length-text" then ok[["x"], length("1x")]
  when "/length-two" then ok[["x"], length("1\n2")]
  when "/length-short" then ok[["12345"], length(10)]
  when "/length-long" then ok[["12345"], length(3)]
  # Failures after the head.
  when "/mid-raise" then ok[body(env, "begun", fail!)]
  when "/mid-number" then ok[body(env, "begun", 7)]
  when "/mid-short" then ok[body(env, "begun"), length(10)]
  when "/mid-long" then ok[body(env, "begun", "and more"), length(7)]
  when "/mid-call" then ok[->(stream) { stream.write("begun"); raise "deliberate" }]
  when "/mid-exit" then ok[body(env, "begun", -> { exit(1) })]
  end
end
run APP
