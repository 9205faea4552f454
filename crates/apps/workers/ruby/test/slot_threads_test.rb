# frozen_string_literal: true

# Starts real workers: what a request may ask of the server, spare slots, and idle collections.

require "minitest/autorun"
require_relative "harness"

class CrewTest < Minitest::Test
  Wire = PenstockWorker::Wire

  WORDS = <<~'RUBY'
    said = []
    run lambda { |env|
      mark, extend = env["penstock.mark_as_io_bound"], env["penstock.extend_timeout"]
      case env["PATH_INFO"]
      when "/mark" then said = [mark.call, mark.call]
      when "/extend" then said = [extend.call(90), extend.call(1.5)]
      when "/wrong"
        said = [0, -1, 86_401, Float::NAN, "1"].map do |seconds|
          extend.call(seconds)
        rescue ArgumentError, TypeError, NoMethodError => error
          error.class.name
        end
      when "/thread" then said = [Thread.new { mark.call }.value]
      when "/threads" then said = [Thread.list.size]
      when "/late"
        body = ["x"].each
        body.define_singleton_method(:close) { said = [mark.call] }
        return [200, {}, body]
      when "/stream"
        return [200, {}, Enumerator.new { |out| out << "one"; mark.call; out << "two" }]
      end
      [200, {}, [said.inspect]]
    }
  RUBY

  # The first request of each process waits for the second, which comes on a spare slot.
  PAIRED = <<~'RUBY'
    gate = Queue.new
    run lambda { |env|
      if env["PATH_INFO"] == "/wait"
        env["penstock.mark_as_io_bound"].call or raise
        gate.pop
      else
        gate << 1
      end
      [200, {}, ["#{env["rack.multithread"]} #{Thread.current.name} #{Thread.list.size}"]]
    }
  RUBY

  QUIET = <<~'RUBY'
    keep = []
    run lambda { |env|
      200_000.times { Object.new } if env["HTTP_X_LITTER"]
      keep << "x" * (100 << 20) if env["HTTP_X_GROW"]
      off = GC.disable
      GC.enable unless off
      off = !GC.config[:rgengc_allow_full_mark] if GC.respond_to?(:config)
      [200, {}, ["#{GC.stat(:major_gc_count)} #{off}"]]
    }
  RUBY

  COLLECT_GARBAGE = Wire.frame(Wire::COLLECT_GARBAGE, 0, "")

  def start(source, **options)
    worker = Harness::Worker.new(source, **options)
    yield worker.ready
  ensure
    worker&.stop
  end

  def get(path)
    Harness.request({ "PATH_INFO" => path })
  end

  def said(source = WORDS, path)
    start(source) do |worker|
      slot = worker.slots[0]
      slot.send(get(path))
      frames = []
      frames << slot.frame until frames.last&.kind == Wire::HEAD
      # The head is binary (a time may look like text): the body follows it.
      head = frames.pop.payload
      [frames, head.byteslice(8 + head.unpack("VV")[1]..)]
    end
  end

  def test_a_request_is_marked_once
    frames, body = said("/mark")
    assert_equal [[Wire::IO_BOUND, 0, 0, ""]], (frames.map { |frame| frame.to_a.take(4) })
    assert_equal "[true, false]", body
  end

  def test_its_time_is_extended_in_whole_seconds
    frames, body = said("/extend")
    assert_equal [Wire::EXTEND_DEADLINE, Wire::EXTEND_DEADLINE], frames.map(&:kind)
    assert_equal [90, 2], (frames.map { |frame| frame.payload.unpack1("V") })
    assert_equal "[true, true]", body
  end

  def test_wrong_seconds_are_the_applications_error
    assert_equal [[], (["ArgumentError"] * 5).inspect], said("/wrong")
  end

  def test_another_thread_may_speak_for_the_request
    frames, body = said("/thread")
    assert_equal [[Wire::IO_BOUND], "[true]"], [frames.map(&:kind), body]
  end

  def test_nothing_is_said_after_the_end
    start(WORDS) do |worker|
      assert_equal "x", worker.ask(get("/late")).body
      assert_equal "[false]", worker.ask(get("/said")).body
    end
  end

  def test_a_stream_may_be_marked_until_its_end
    start(WORDS) do |worker|
      worker.slots[0].send(get("/stream"))
      kinds = Array.new(4) { worker.slots[0].frame.kind }
      assert_equal [Wire::HEAD, Wire::IO_BOUND, Wire::BODY, Wire::BODY], kinds
    end
  end

  def test_a_spare_slot_serves_while_a_marked_request_waits
    start(PAIRED, spares: 2) do |worker|
      worker.slots[0].send(get("/wait"))
      assert_equal Wire::IO_BOUND, worker.slots[0].frame.kind
      worker.spares[1].send(get("/"))
      assert_match(/ io-2 3\z/, worker.spares[1].reply.body)
      assert_match(/  3\z/, worker.slots[0].reply.body)
    end
  end

  def test_threads_of_spare_slots_begin_when_they_are_needed
    start(WORDS, spares: 3) do |worker|
      assert_equal "[1]", worker.ask(get("/threads")).body
      worker.slots[0].send(get("/mark"))
      assert_equal Wire::IO_BOUND, worker.slots[0].frame.kind
      worker.slots[0].reply
      assert_equal "[4]", worker.ask(get("/threads")).body
    end
  end

  def test_the_process_ends_in_order_when_all_slots_are_closed
    [true, false].product([1, 2]).each do |used, slots|
      start("at_exit { $stderr.puts 'bye' }\n#{WORDS}", slots: slots, spares: 2) do |worker|
        if used
          worker.slots[0].send(get("/mark"))
          assert_equal Wire::IO_BOUND, worker.slots[0].frame.kind
          worker.slots[0].reply
        end
        (worker.slots + worker.spares).each { |peer| peer.socket.close_write }
        assert_equal 0, worker.wait.exitstatus
        assert_equal "bye\n", worker.log
      end
    end
  end

  def collect(worker, data = "")
    worker.slots[0].send(COLLECT_GARBAGE + data)
    assert_equal [Wire::GARBAGE_COLLECTED, 0, 0, ""], worker.slots[0].frame.to_a.take(4)
  end

  # Makes garbage; returns the number of full collections, and whether they are off.
  def litter(worker, **more)
    count, off = worker.ask(Harness.request({ "HTTP_X_LITTER" => "1", **more.transform_keys(&:to_s) })).body.split
    [count.to_i, off == "true"]
  end

  def test_garbage_waits_until_the_server_says_so
    start(QUIET, options: ["--gc-when-idle"]) do |worker|
      before, off = litter(worker)
      assert off
      assert_equal [before, true], litter(worker)
      collect(worker)
      assert_equal [before + 1, true], litter(worker)
    end
  end

  def test_a_collection_may_be_asked_for_together_with_a_request
    start(QUIET) do |worker|
      collect(worker, Harness.request)
      refute_includes worker.slots[0].reply.body, "true"
    end
  end

  def test_a_frame_may_come_in_pieces
    start(QUIET) do |worker|
      (1..7).each do |cut|
        worker.slots[0].socket.write(COLLECT_GARBAGE[0, cut])
        worker.slots[0].socket.write(COLLECT_GARBAGE[cut..])
        assert_equal Wire::GARBAGE_COLLECTED, worker.slots[0].frame.kind
      end
    end
  end

  def test_without_it_ruby_collects_again_when_memory_doubles
    start(QUIET, options: ["--gc-when-idle"]) do |worker|
      litter(worker, HTTP_X_GROW: "1")
      states = Array.new(20) { worker.ask(Harness.request).body.end_with?("true") }
      assert_equal [true, false], [states.first, states.last]
      collect(worker)
      assert litter(worker)[1], "off again after a collection"
    end
  end

  # In this process, since that many requests double the memory of one that never collects.
  def test_without_it_ruby_collects_again_after_many_requests
    collector = PenstockWorker::IdleGc.new
    collector.define_singleton_method(:resident_pages) { 0 }
    allowed = 0
    collector.define_singleton_method(:enable_gc) { allowed += super().then { 1 } }
    9_999.times { collector.count_request }
    assert_equal 0, allowed
    2.times { collector.count_request }
    assert_equal 1, allowed
  ensure
    collector.enable_gc
  end

  def test_a_frame_with_more_in_it_ends_the_process
    start(QUIET) do |worker|
      worker.slots[0].send(Wire.frame(Wire::COLLECT_GARBAGE, 0, "1234"))
      assert_equal 1, worker.wait.exitstatus
    end
  end

  LAST = <<~'RUBY'
    at_exit { warn "the end" }
    run lambda { |env|
      body = [Process.pid.to_s].each
      body.define_singleton_method(:close) do
        next unless env["PATH_INFO"] == "/after"

        File.read("gate")
        warn "done afterwards"
      end
      [200, { "content-length" => Process.pid.to_s.size.to_s }, body]
    }
  RUBY

  def dismiss(worker)
    worker.slots.each { |slot| slot.socket.close }
    worker.control.socket.write(Wire.frame(Wire::DISMISS, 0, ""))
  end

  def test_what_a_thread_does_after_its_answer_is_done_before_the_end
    [[1, []], [1, ["--may-become-template"]], [3, []], [3, ["--may-become-template"]]].each do |slots, options|
      start("File.mkfifo('gate')\n#{LAST}", slots: slots, options: options) do |worker|
        refute_empty worker.ask(get("/after")).body
        dismiss(worker)
        # Its thread waits here until there is a writer.
        Timeout.timeout(Harness::DEADLINE) { File.open(File.join(worker.dir, "gate"), "w") { nil } }
        assert_equal 0, worker.wait.exitstatus
        assert_equal "done afterwards\nthe end\n", worker.log[/done.*/m]
      end
    end
  end

  def test_an_idle_worker_that_stays_ends_in_order
    start(LAST, slots: 2, options: ["--may-become-template"]) do |worker|
      worker.ask(get("/"))
      dismiss(worker)
      assert_equal 0, worker.wait.exitstatus
      assert_includes worker.log, "the end"
    end
  end
end
