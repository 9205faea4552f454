# frozen_string_literal: true

# Drives a real worker through the rules of Rack that it keeps or enforces, twice: with the
# installed Rack, and with Rack 3, which is a stand-in unless RACK3_HOME names a directory with the
# real one.

require "minitest/autorun"
require_relative "harness"

module RackAppTests
  APP = <<~'RUBY'
    require "uri"
    require "rack/lint"
    require "rack/body_proxy"

    CLOSED = []
    TEXT = { "content-type" => "text/plain" }.freeze

    class Closing
      def initialize(*chunks, error: nil)
        @chunks = chunks
        @error = error
      end

      def each(&block)
        @chunks.each(&block)
        raise @error if @error
      end

      def close
        CLOSED << self
        raise KeyError, "in close" if @chunks == ["bad close"]
      end
    end

    class Endless < Closing
      def each
        loop { yield "tick" }
      end
    end

    # Like the bodies of Rails.
    class NoArray < Closing
      def to_ary
        nil
      end
    end

    class PathBody < Closing
      def initialize(path)
        super("read")
        @path = path
      end
      attr_reader :path
      alias to_path path
    end

    FINISHED = []
    REMEMBERED = []
    HUGE = "x" * 3_000_000

    APPS = {
      "hello" => ->(_) { [200, TEXT, ["hello"]] },
      "text_status" => ->(_) { ["200", TEXT, ["hello"]] },
      "echo" => ->(env) { [200, TEXT, [env["rack.input"].read]] },
      "hijack_elsewhere" => lambda { |env|
        error = Thread.new do
          env["rack.hijack"].call
          "hijacked"
        rescue IOError => e
          e.message
        end
        [200, TEXT, [error.value]]
      },
      "remember" => lambda { |env|
        REMEMBERED << env["rack.hijack"]
        [200, TEXT, ["remembered"]]
      },
      "hijack_stale" => lambda { |_env|
        error = begin
          REMEMBERED.pop.call && "hijacked"
        rescue IOError => e
          e.message
        end
        [200, TEXT, [error]]
      },
      "hijack" => lambda { |env|
        io = env["rack.hijack"].call
        same = io.equal?(env["rack.hijack"].call) && io.equal?(env["rack.hijack_io"])
        io.write("same: #{same}")
        io.close
      },
      "rewind" => lambda { |env|
        input = env["rack.input"]
        first = [input.gets, input.read(2), input.external_encoding.to_s]
        input.rewind
        [200, TEXT, [(first + [input.read]).inspect]]
      },
      "env" => ->(env) { [200, TEXT, [env.reject { |_, v| v.is_a?(IO) || v.is_a?(StringIO) }.inspect]] },
      "several" => ->(_) { [200, TEXT, ["a", "", "b"]] },
      "mixed" => ->(_) { [200, TEXT, ["\u00e9", "\xe9".b]] },
      "large" => ->(_) { [200, TEXT, [HUGE]] },
      "large_parts" => ->(_) { [200, TEXT, ["x" * 600_000, "y" * 10]] },
      "nothing" => ->(_) { [204, {}, []] },
      "each" => ->(_) { [200, TEXT, Closing.new("", "one", "", "two")] },
      "each_nothing" => ->(_) { [200, TEXT, Closing.new] },
      "each_whole" => ->(_) { [200, TEXT.merge("content-length" => "5"), Closing.new("hello")] },
      "no_array" => ->(_) { [200, TEXT, NoArray.new("one", "two")] },
      "proxy" => ->(_) { [200, TEXT, Rack::BodyProxy.new(["a", "b"]) { CLOSED << :proxy }] },
      "close_raises" => ->(_) { [200, TEXT, Closing.new("bad close")] },
      "raises_midway" => ->(_) { [200, TEXT, Closing.new("one", error: ArgumentError.new("midway"))] },
      "endless" => ->(_) { [200, TEXT, Endless.new] },
      "raises" => ->(_) { raise ArgumentError, "before" },
      "exits" => ->(_) { exit 3 },
      "throws" => ->(_) { throw :async },
      "count" => ->(_) { [200, TEXT, [CLOSED.size.to_s]] },
      "nil" => ->(_) {},
      "two" => ->(_) { [200, TEXT] },
      "status_nil" => ->(_) { [nil, TEXT, []] },
      "status_interim" => ->(_) { [101, TEXT, []] },
      "headers_nil" => ->(_) { [200, nil, []] },
      "header_break" => ->(_) { [200, { "location" => "/x\r\nset-cookie: y" }, []] },
      "header_nul" => ->(_) { [200, { "a" => "x\0b\0y" }, []] },
      "body_nil" => ->(_) { [200, TEXT, nil] },
      "body_number" => ->(_) { [200, TEXT, [5]] },
      "each_number" => ->(_) { [200, TEXT, Closing.new(5)] },
      "lines" => ->(_) { [200, { "set-cookie" => "a=1\nb=2", "empty" => "", "length" => 5, "rack.x" => "no" }, []] },
      "arrays" => ->(_) { [200, { "set-cookie" => %w[a=1 b=2] }, []] },
      "wide" => ->(_) { [200, { "a" => "\u20ac", "b" => "\xe9".b, "c" => "\xff" }, []] },
      "path" => ->(_) { [200, TEXT, PathBody.new(File.expand_path("file.txt"))] },
      "path_part" => ->(_) { [200, TEXT.merge("content-length" => "3"), PathBody.new(File.expand_path("file.txt"))] },
      "path_missing" => ->(_) { [200, TEXT, PathBody.new("/nonexistent")] },
      "call" => lambda { |_|
        [200, TEXT, lambda { |stream|
          stream << "one"
          stream.write("two", "three")
          stream.write(stream.read.to_s)
          stream.flush
          stream.close
          stream.write("late") unless stream.closed?
        }]
      },
      "call_open" => ->(_) { [200, TEXT, ->(stream) { stream.write("open") }] },
      "call_raises" => ->(_) { [200, TEXT, ->(stream) { stream.write("one") && raise(ArgumentError) }] },
      "finished" => lambda { |env|
        2.times do |n|
          env["rack.response_finished"] << lambda { |_, status, headers, error|
            FINISHED << [n, status, headers.size, error]
          }
        end
        [200, TEXT, ["x"]]
      },
      "finished_list" => ->(_) { [200, TEXT, [FINISHED.inspect]] }
    }.freeze
    LINTED = {
      "lint" => ->(env) { [200, TEXT.dup, [env["rack.input"].read.to_s]] },
      "lint_each" => ->(_) { [200, TEXT.dup, Closing.new("a", "b")] },
      "lint_nothing" => ->(_) { [204, {}, []] }
    }.transform_values { |app| Rack::Lint.new(app) }.freeze

    run ->(env) { (APPS[env["PATH_INFO"][1..]] || LINTED.fetch(env["PATH_INFO"][1..])).call(env) }
  RUBY

  Wire = PenstockWorker::Wire

  def worker
    self.class.worker
  end

  def slot
    worker.slots[0]
  end

  def ask(name, body: "", **environ)
    worker.ask(Harness.request({ "PATH_INFO" => "/#{name}", **environ.transform_keys(&:to_s) }, body: body))
  end

  def closed
    Integer(ask("count").body)
  end

  def test_whole_bodies_take_one_frame
    {
      "hello" => "hello", "text_status" => "hello", "several" => "ab", "large" => "x" * 3_000_000, "nothing" => "",
      "each_nothing" => "", "each_whole" => "hello", "proxy" => "ab", "mixed" => "\u00e9".b + "\xe9".b
    }.each do |name, body|
      reply = ask(name)
      assert_equal [body, [Wire::HEAD]], [reply.body, reply.frames], name
    end
  end

  def test_unknown_lengths_are_streamed_chunk_by_chunk
    {
      "each" => ["onetwo", 3],
      "no_array" => ["onetwo", 3],
      "large_parts" => ["#{"x" * 600_000}#{"y" * 10}", 6]
    }.each do |name, (body, frames)|
      reply = ask(name)
      assert_equal [body, frames], [reply.body, reply.frames.size], name
    end
  end

  def test_headers_arrive_one_line_a_value
    reply = ask("lines")
    expected = [%w[set-cookie a=1], %w[set-cookie b=2], ["empty", ""], %w[length 5]]
    assert_equal ["200", expected], [reply.status, reply.headers]
    assert_equal [%w[set-cookie a=1], %w[set-cookie b=2]], ask("arrays").headers
    assert_equal [["a", "\u20ac".b], ["b", "\xe9".b], ["c", "\xff".b]], ask("wide").headers
  end

  def test_bodies_arrive_in_memory_and_as_files
    data = Random.bytes(100_000)
    assert_equal data, ask("echo", body: data).body
    assert_equal "", ask("echo").body
    Tempfile.create do |file|
      file.binmode.write(data)
      file.rewind
      slot.send(Harness.request({ "PATH_INFO" => "/echo" }, file: true))
      assert_equal Wire::FD_REQUEST, slot.frame.kind
      slot.socket.send_io(file)
      assert_equal data, slot.reply.body
    end
  end

  def test_the_input_is_binary_and_can_be_rewound
    reply = ask("rewind", body: "one\ntwo")
    assert_equal ["one\n", "tw", "ASCII-8BIT", "one\ntwo"].inspect, reply.body
  end

  def test_a_thread_that_a_request_left_behind_hijacks_nothing
    reply = ask("hijack_elsewhere")
    assert_equal "the connection cannot be hijacked: the call is over", reply.body
  end

  def test_an_environment_that_a_request_left_behind_hijacks_nothing
    assert_equal "remembered", ask("remember").body
    reply = ask("hijack_stale")
    assert_equal "the connection cannot be hijacked: the call is over", reply.body
  end

  def test_a_hijacked_connection_is_one_for_the_call_and_no_other
    2.times do
      slot.send(Harness.request({ "PATH_INFO" => "/hijack" }))
      socket = slot.frame.file
      assert_equal "same: true", socket.read
      assert_equal [Wire::BODY, Wire::FLAG_END], slot.frame.to_a.first(2)
      assert_equal "hello", ask("hello").body
    end
  end

  def test_the_environment_fits_the_version_of_rack
    shown = ask("env").body
    assert_includes shown, %("rack.url_scheme"=>"http")
    of_rack2 = %("rack.version"=>[1, 3], "rack.multithread"=>false, "rack.multiprocess"=>true)
    assert_equal major < 3, shown.include?(of_rack2)
    assert_includes shown, %("rack.hijack?"=>true)
  end

  def test_bodies_are_closed_exactly_once
    %w[each each_whole no_array proxy close_raises raises_midway each_number path].each do |name|
      before = closed
      ask(name)
      assert_equal 1, closed - before, name
    end
  end

  def test_a_cancelled_stream_stops_and_is_closed
    before = closed
    number = slot.requests
    slot.send(Harness.cancel(0))
    slot.send(Harness.request({ "PATH_INFO" => "/endless" }))
    assert_equal Wire::HEAD, slot.frame.kind
    slot.send(Harness.request({ "PATH_INFO" => "/hello" }) + Harness.cancel(number))
    frame = slot.frame
    frame = slot.frame while frame.kind == Wire::BODY
    assert_equal [Wire::ABORT, "cancelled"], [frame.kind, frame.payload]
    assert_equal "hello", slot.reply.body
    assert_equal 1, closed - before
  end

  def test_exceptions_fail_their_request_only
    { "raises" => "ArgumentError", "exits" => "SystemExit", "throws" => "UncaughtThrowError" }.each do |name, error|
      reply = ask(name)
      assert_equal [nil, 0, "application raised #{error}"], [reply.status, reply.flags, reply.reason], name
      assert_equal "hello", ask("hello").body
    end
    assert_match(%r{^error in GET /raises\n.*config\.ru:\d+:in .*before \(ArgumentError\)}, worker.log)
  end

  def test_exceptions_after_the_head_abort_the_response
    %w[raises_midway call_raises].each do |name|
      reply = ask(name)
      assert_equal ["one", "application raised ArgumentError"], [reply.body, reply.reason], name
    end
  end

  def test_broken_rules_fail_as_such
    {
      "nil" => "NilClass, not an array of three", "two" => "not an array of three", "status_nil" => "status nil",
      "status_interim" => "status 101", "headers_nil" => "bad headers", "header_break" => "a control character",
      "header_nul" => "a control character", "body_nil" => "responds to neither", "body_number" => "holds Integer",
      "each_number" => "holds Integer"
    }.each do |name, reason|
      reply = ask(name)
      assert_equal [nil, Wire::FLAG_PROTOCOL_ERROR], [reply.status, reply.flags], name
      assert_includes reply.reason, reason
    end
    assert_equal "hello", ask("hello").body
  end

  def test_paths_travel_as_descriptors
    reply = ask("path")
    assert_equal ["0123456789", [Wire::HEAD, Wire::FILE]], [reply.body, reply.frames]
    assert_equal "012", ask("path_part").body
    assert_equal "read", ask("path_missing").body
  end

  def test_bodies_that_write_to_a_stream
    assert_equal "onetwothreein", ask("call", body: "in").body
    assert_equal "open", ask("call_open").body
  end

  def test_batches_are_answered_in_order
    names = %w[hello raises each nil several] * 4
    slot.send(names.sum("") { |name| Harness.request({ "PATH_INFO" => "/#{name}" }) })
    assert_equal ["hello", "", "onetwo", "", "ab"] * 4, Array.new(names.size) { slot.reply.body }
  end

  def test_callbacks_run_in_reverse_when_the_response_is_finished
    skip "since Rack 3" if major < 3
    ask("finished")
    assert_equal [[1, 200, 1, nil], [0, 200, 1, nil]].inspect, ask("finished_list").body
  end

  def test_lint_agrees
    assert_equal "abc", ask("lint", body: "abc", REQUEST_METHOD: "POST").body
    assert_equal "", ask("lint", SCRIPT_NAME: "/mount").body
    assert_equal "ab", ask("lint_each").body
    assert_equal "204", ask("lint_nothing").status
    assert_equal 0, ask("lint", REQUEST_METHOD: "HEAD").body.size
  end

  # Starts one worker for all tests of a class.
  module Shared
    def start(env)
      @worker ||= Harness::Worker.new(APP, files: { "file.txt" => "0123456789" }, env: env).ready
      Minitest.after_run { @worker.stop }
    end

    attr_reader :worker
  end
end

class InstalledRackTest < Minitest::Test
  include RackAppTests
  extend RackAppTests::Shared

  start({})

  def major
    worker.description["interface"][/\d+/].to_i
  end
end

class Rack3Test < Minitest::Test
  include RackAppTests
  extend RackAppTests::Shared

  home = ENV.fetch("RACK3_HOME", nil)
  start(home ? { "GEM_HOME" => home, "GEM_PATH" => home } : { "RUBYLIB" => "#{__dir__}/rack3" })

  def major
    3
  end

  def test_it_is_rack_3_that_runs
    assert_match(/\Arack 3/, worker.description["interface"])
  end
end
