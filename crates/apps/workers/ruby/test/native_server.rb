# frozen_string_literal: true

# What `native_test` starts: serves each line of standard input, frames in hexadecimal, on a slot of
# its own; writes what came back, what the application saw, how the thread ended, and the log. With
# PENSTOCK_STRESS each allocation of the worker collects garbage, also while the native part is set up;
# if that is `compact`, objects move each time, which takes long.

require "json"
require "socket"
require "stringio"
require "timeout"
require "io/nonblock"
require_relative "../worker"

# Applications of all kinds, by path.
class Applications
  CLOSED = []

  class Body
    def initialize(*parts)
      @parts = parts
    end

    def each(&block)
      @parts.each(&block)
    end

    def close
      CLOSED << self
      raise KeyError, "in close" if @parts == ["bad close"]
    end
  end

  class Listed < Array; end
  class Text < String; end
  class Table < Hash; end

  FIELDS = { "content-type" => "text/plain", "x" => "tab\there" }.freeze
  MIXED = "mixed \u20ac"

  attr_reader :seen

  # Without `records` it keeps nothing.
  def initialize(records)
    @seen = []
    @records = records
  end

  def call(env)
    # Only the worker's own allocations are to take long.
    GC.stress = false
    @seen << [env["PATH_INFO"].to_s.b.inspect[1..-2], shown(env), input_of(env)] if @records
    answer(env)
  ensure
    GC.stress = true if ENV["PENSTOCK_STRESS"]
  end

  def shown(env)
    env.map do |name, value|
      form = value.is_a?(String) ? [value.b.inspect, value.encoding.to_s] : value.class.name
      [name.b.inspect, name.encoding.to_s, form]
    end
  end

  def input_of(env)
    input = env["rack.input"]
    input.respond_to?(:read) ? input.read.to_s.b.unpack1("H*") : "none"
  end

  def answer(env)
    case env["PATH_INFO"]
    when "/raise" then raise ArgumentError, "asked to"
    when "/exit" then exit 3
    when "/memory" then raise NoMemoryError, "failed to allocate memory"
    when "/interrupt" then raise Interrupt, "as a signal"
    when "/throw" then throw :nothing
    when "/catch" then catch(:it) { throw :it, [200, {}, ["caught"]] }
    when "/timeout" then Timeout.timeout(0.001) { sleep }
    when "/kill" then Thread.current.kill
    when "/nil" then nil
    when "/two_of_three" then [200, {}]
    when "/four" then [200, {}, ["x"], ["y"]]
    when "/listed" then Listed[200, {}, ["listed"]]
    when "/status_text" then ["201", {}, ["x"]]
    when "/status_float" then [200.5, {}, ["x"]]
    when "/status_low" then [199, {}, ["x"]]
    when "/status_599" then [599, {}, ["x"]]
    when "/status_600" then [600, {}, ["x"]]
    when "/status_101" then [101, {}, ["x"]]
    when "/status_huge" then [10**30, {}, ["x"]]
    when "/status_negative" then [-(2**62), {}, ["x"]]
    when "/status_nil" then [nil, {}, ["x"]]
    when "/headers_nil" then [200, nil, ["x"]]
    when "/headers_list" then [200, [%w[a b]], ["x"]]
    when "/headers_table" then [200, Table["a", "b"], ["x"]]
    when "/headers_default" then [200, Hash.new { |_, _| raise "asked" }.merge!("a" => "b"), ["x"]]
    when "/headers_many" then [200, (1..40).to_h { |n| ["x-#{n}", "v" * n] }, ["x"]]
    when "/headers_too_many" then [200, (1..2500).to_h { |n| ["x-#{n}", "v"] }, ["x"]]
    when "/headers_long" then [200, { "a" => "b" * 15_000 }, ["x"]]
    when "/headers_longer" then [200, { "a" => "b" * 20_000 }, ["x"]]
    when "/headers_endless" then [200, { "a" => "b" * 300_000 }, ["x"]]
    when "/value_list" then [200, { "set-cookie" => %w[a=1 b=2] }, ["x"]]
    when "/value_lines" then [200, { "set-cookie" => "a=1\nb=2", "z" => "1" }, ["x"]]
    when "/value_number" then [200, { "length" => 5 }, ["x"]]
    when "/value_nil" then [200, { "a" => nil }, ["x"]]
    when "/value_text" then [200, { "a" => Text.new("text") }, ["x"]]
    when "/value_break" then [200, { "a" => "x\r\ny: z" }, ["x"]]
    when "/value_nul" then [200, { "a" => "x\0y" }, ["x"]]
    when "/value_delete" then [200, { "a" => "x\x7fy" }, ["x"]]
    when "/value_empty" then [200, { "a" => "", "b" => "" }, ["x"]]
    when "/value_wide" then [200, { "a" => "b" }.transform_values { |v| v.encode("UTF-16LE") }, ["x"]]
    when "/value_wide_ascii" then [200, { "a" => "ab".dup.force_encoding("UTF-16LE") }, ["x"]]
    when "/value_invalid" then [200, { "a" => "\xff" }, ["x"]]
    when "/latin" then [200, { "a" => "\xe4".b, "b" => MIXED }, ["latin"]]
    when "/name_symbol" then [200, { content: "x" }, ["x"]]
    when "/name_text" then [200, { Text.new("name") => "x" }, ["x"]]
    when "/name_empty" then [200, { "" => "x" }, ["x"]]
    when "/name_break" then [200, { "a\nb" => "x" }, ["x"]]
    when "/name_rack" then [200, { "rack.x" => "no", "rack" => "yes", "rack." => "no" }, ["x"]]
    when "/name_hijack" then [200, { "rack.hijack" => ->(io) { io.write("raw") && io.close } }, []]
    when "/body_empty" then [200, FIELDS, [""]]
    when "/body_none" then [204, {}, []]
    when "/two" then [200, FIELDS, %w[one two]]
    when "/body_listed" then [200, FIELDS, Listed["listed"]]
    when "/body_text" then [200, FIELDS, [Text.new("text")]]
    when "/body_number" then [200, FIELDS, [5]]
    when "/body_nil" then [200, FIELDS, nil]
    when "/body_nils" then [200, FIELDS, [nil]]
    when "/body_string" then [200, FIELDS, "string"]
    when "/body_mixed" then [200, FIELDS, [MIXED]]
    when "/body_binary" then [200, FIELDS, ["\xff\0\x80".b]]
    when "/body_invalid" then [200, FIELDS, ["\xff\xc3"]]
    when "/body_wide" then [200, FIELDS, [MIXED.encode("UTF-16LE")]]
    when "/body_dummy" then [200, FIELDS, ["\xfe\xff\0a".dup.force_encoding("UTF-16")]]
    when "/body_liar" then [200, FIELDS, [liar]]
    when "/body_limit" then [200, FIELDS, ["l" * (64 << 10)]]
    when "/body_limit_wide" then [200, FIELDS, ["\u20ac" * 21_845]]
    when "/body_beyond" then [200, FIELDS, ["l" * ((64 << 10) + 1)]]
    when "/body_beyond_wide" then [200, FIELDS, ["\u20ac" * 21_846]]
    when "/large" then [200, FIELDS, ["l" * 300_000]]
    when "/each" then [200, FIELDS, Body.new("one", "", "two")]
    when "/each_whole" then [200, FIELDS.merge("content-length" => "5"), Body.new("hello")]
    when "/close" then [200, FIELDS, Body.new("bad close")]
    when "/call" then [200, FIELDS, ->(stream) { stream.write("called") && stream.close }]
    when "/path" then [200, FIELDS, path_body]
    when "/hijack" then hijack(env)
    when "/hijack_proc" then [200, FIELDS, [env["rack.hijack"].to_proc.lambda?.to_s]]
    when "/io_bound" then [200, FIELDS, [env["penstock.mark_as_io_bound"].call.to_s]]
    when "/extend" then [200, FIELDS, [env["penstock.extend_timeout"].call(5).to_s]]
    when "/late_notice" then late_notice(env)
    when "/finished" then finished(env)
    when "/no_callbacks" then env.delete("rack.response_finished") && [200, FIELDS, ["x"]] || [200, FIELDS, ["y"]]
    when "/cleared" then [200, FIELDS, [env.clear.size.to_s]]
    when "/frozen" then [200, FIELDS, ["frozen"].freeze].freeze
    when "/collect" then collect
    else [200, FIELDS, ["hello #{CLOSED.size}"]]
    end
  end

  # Where it can be, objects move too.
  def collect
    GC.start
    GC.compact if GC.respond_to?(:compact)
    [200, { "x-#{"a" * 20}" => "b" * 30 }, ["collected" * 100]]
  rescue NotImplementedError
    [200, {}, ["collected"]]
  end

  # A String whose own `bytesize` is another.
  def liar
    text = +"liar"
    def text.bytesize
      1 << 20
    end
    text
  end

  def path_body
    body = Body.new("read")
    def body.to_path
      __FILE__
    end
    body
  end

  def hijack(env)
    io = env["rack.hijack"].call
    io.write("raw")
    io.close
    nil
  end

  # A thread that outlives its request gets nothing of the next.
  def late_notice(env)
    @late&.call
    first = @late.nil?
    @late = env["penstock.mark_as_io_bound"]
    [200, FIELDS, [first.to_s]]
  end

  def finished(env)
    env["rack.response_finished"]&.push(lambda { |_env, status, headers, error|
      @seen << ["finished", status, headers.to_a, error.inspect]
      raise KeyError, "in a callback"
    })
    [203, FIELDS, ["finished"]]
  end
end

# One slot, and what became of it.
class Run
  def initialize(given)
    @data = [given["frames"]].pack("H*")
    @repeat = given["repeat"] || 1
    @pieces = given["pieces"] || []
    @rack = given["rack"] || 2
  end

  def outcome
    ours, theirs = UNIXSocket.pair.each { |socket| socket.nonblock = false }
    Applications::CLOSED.clear
    before = $stderr
    $stderr = log = StringIO.new
    app = Applications.new(@repeat == 1)
    feeder = feed(ours) unless @repeat > 1
    reader = Thread.new { read(ours) }
    thread = Thread.new { serve(theirs, app) }
    return grow(ours, thread, reader) if @repeat > 1

    ending = thread.value || "killed"
    theirs.close
    feeder&.join
    { sent: mask(reader.value).unpack1("H*"), seen: app.seen, end: ending, log: heads(log.string) }
  ensure
    $stderr = before
    theirs.close unless theirs.closed?
    ours.close
  end

  private

  # All of it before anything is served, or in pieces meanwhile.
  def feed(ours)
    if @pieces.empty?
      ours.write(@data)
      ours.close_write
      return
    end
    Thread.new do
      at = 0
      @pieces.each do |size|
        ours.write(@data.byteslice(at, size).to_s)
        at += size
      end
      ours.write(@data.byteslice(at..).to_s)
      ours.close_write
    rescue SystemCallError
      nil
    end
  end

  # The sockets of hijacked requests stay open meanwhile.
  def read(ours)
    got = +""
    sockets = []
    loop do
      message = ours.recvmsg(1 << 16, scm_rights: true)
      piece = message[0]
      break if piece.nil? || piece.empty?

      got << piece if @repeat == 1
      sockets.concat(message.drop(3))
    end
    got
  rescue SystemCallError
    got
  ensure
    sockets.flat_map(&:unix_rights).compact.each(&:close)
  end

  def serve(theirs, app)
    slot = PenstockWorker::Slot.new(theirs)
    slot.base = PenstockWorker::RackEnv.base(@rack, multithread: true, slot: slot)
    PenstockWorker::RackApp.new(slot, app, @rack).serve
    "closed"
  rescue Exception => error # rubocop:disable Lint/RescueException
    error.class.name
  ensure
    GC.stress = false
    # A thread that ends itself leaves it to this.
    theirs.shutdown(Socket::SHUT_WR) unless theirs.closed?
  end

  # How many pages more the process has after as many requests again: what is lost is lost each
  # time, and what only settles is not.
  def grow(ours, thread, reader)
    pages = Array.new(4) do
      (@repeat / 2).times do |n|
        ours.write(@data)
        next unless (n % 100).zero?

        Applications::CLOSED.clear
        $stderr.reopen(+"")
      end
      3.times { GC.start }
      File.read("/proc/self/statm").split[1].to_i
    end
    ours.close_write
    thread.join
    reader.join
    { growth: pages.each_cons(2).map { |before, after| after - before }.min }
  end

  # Without the time that a response took.
  def mask(data)
    at = 0
    while data.bytesize - at >= 8
      data[at + 8, 4] = "\0\0\0\0".b if data.getbyte(at) == PenstockWorker::Wire::HEAD && data.bytesize - at >= 12
      at += 8 + data.byteslice(at + 4, 4).unpack1("V")
    end
    data
  end

  # Without the frames of the stack that differ.
  def heads(log)
    log.b.lines.reject { |line| line.start_with?("\tfrom") }.map { |line| line.unpack1("H*") }
  end
end

GC.stress = true if ENV["PENSTOCK_STRESS"]
PenstockWorker::NativePart.load
GC.stress = false
abort "the native part is not loaded" unless PenstockWorker::NativePart.is_loaded == (ENV["PENSTOCK_NATIVE"] != "off")
GC.auto_compact = true if ENV["PENSTOCK_STRESS"] == "compact" && GC.respond_to?(:auto_compact=)
$stdin.each_line { |line| puts JSON.generate(Run.new(JSON.parse(line)).outcome) }
