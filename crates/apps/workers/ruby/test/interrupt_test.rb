# frozen_string_literal: true

# Exceptions that come from elsewhere while a response is sent and the socket is full: the frame stays
# whole, and the next response is the next request's.

require "minitest/autorun"
require "timeout"
require_relative "slot_helper"

class InterruptTest < Minitest::Test
  include SlotHelper

  # An application that answers with the request's path, and a page of 40,000 bytes and more.
  class Pages
    def call(env)
      path = env["PATH_INFO"]
      text = "#{path} " * (path == "/large" ? 60_000 : 8_000)
      [200, { "x-path" => path }, path == "/streamed" ? [text, text].each : [text]]
    end
  end

  TRAP = <<~'RUBY'
    trap("USR1") { raise KeyError, "in a trap" }
    run lambda { |env|
      $stderr.syswrite("called\n")
      [200, {}, ["#{env["PATH_INFO"]} " * Integer(env["HTTP_X_TIMES"])]]
    }
  RUBY

  def test_a_frame_that_ends_too_early_is_refused_and_not_waited_for
    [[Wire::REQUEST, 0], [Wire::CANCEL, 3], [8, 0]].each do |kind, length|
      ours, theirs = UNIXSocket.pair
      ours.write([kind, 0, 0, length].pack("CCvV"))
      slot = PenstockWorker::Slot.new(theirs)
      assert_raises(Wire::Error) { Timeout.timeout(20) { slot.receive } }
    ensure
      [ours, theirs].each(&:close)
    end
  end

  def test_a_response_that_is_interrupted_is_sent_whole
    %w[/joined /large].product([true, false]).each do |path, has_room|
      first, second, *more = frames_of_interrupted(path, has_room)
      assert_empty more
      assert_equal [Wire::HEAD, Wire::FLAG_END], first[0, 2]
      assert_equal [Wire::HEAD, Wire::FLAG_END], second[0, 2]
      assert first[2].end_with?("200\0x-path\0#{path}#{"#{path} " * (path == "/large" ? 60_000 : 8_000)}")
      assert second[2].end_with?("200\0x-path\0/two#{"/two " * 8_000}")
    end
  end

  def test_a_stream_that_is_interrupted_is_aborted
    [true, false].each do |has_room|
      first, failure, second, *more = frames_of_interrupted("/streamed", has_room)
      assert_empty more
      assert_equal [Wire::HEAD, Wire::FLAG_STREAM], first[0, 2]
      assert first[2].end_with?("200\0x-path\0/streamed#{"/streamed " * 8_000}")
      assert_equal [Wire::ABORT, 0, "application raised KeyError"], failure
      assert second[2].end_with?("200\0x-path\0/two#{"/two " * 8_000}")
    end
  end

  # How much of the frame has left is not known then.
  def test_a_trap_that_raises_ends_a_process_that_sends_a_large_response
    worker = trapped([["/one", 200_000], ["/two", 10]])
    sent = Timeout.timeout(Harness::DEADLINE) { worker.slots[0].socket.read }
    _, flags, _, length = sent.unpack("CCvV")
    assert_equal Wire::FLAG_END, flags
    assert_operator sent.bytesize, :<, length
    refute_includes sent, "/two"
    refute_predicate worker.wait, :success?
    assert_match(/this process must end.*in a trap/m, worker.log)
  ensure
    worker&.stop
  end

  def test_the_native_part_finishes_what_a_trap_has_interrupted
    skip "it is not there" if ENV.fetch("PENSTOCK_NATIVE", "off") == "off"
    paths = (10..19).map { |number| "/number#{number}" }
    worker = trapped(paths.map { |path| [path, 5_000] })
    wait_until { worker.log.include?("in a trap") }
    paths.each { |path| assert_equal "#{path} " * 5_000, worker.slots[0].reply.body }
  ensure
    worker&.stop
  end

  private

  # What is sent for a request whose response is interrupted, and for one behind it.
  def frames_of_interrupted(path, has_room)
    with_slot do |ours, slot|
      thread = serving(slot) { |env| Pages.new.call(env) }
      sent = nil
      _, log = capture_io do
        filled = fill(ours, slot, has_room: has_room)
        ours.write(request(path) + request("/two"))
        wait_until_it_sleeps(thread) { slot.seq.zero? && has_begun?(slot) }
        thread.raise(KeyError, "in between")
        # The native part has it at once, and finishes the frame later.
        is_native = path == "/joined" && PenstockWorker::NativePart.is_loaded
        wait_until { $stderr.string.include?("in between") } if is_native
        ours.close_write
        sent = read_to_the_end(ours, slot, thread).byteslice(filled..)
      end
      assert_match(/in between \(KeyError\)/, log)
      split(sent)
    end
  end

  def has_begun?(slot)
    slot.ended? || slot.instance_variable_get(:@streaming_seq).zero?
  end

  def split(sent)
    frames = []
    until sent.empty?
      kind, flags, _, length = sent.unpack("CCvV")
      assert_operator sent.bytesize, :>=, 8 + length
      frames << [kind, flags, sent.byteslice(8, length)]
      sent = sent.byteslice(8 + length..)
    end
    frames
  end

  # A worker that got these requests, and a signal while it waits for room to answer one of them.
  def trapped(pages)
    worker = Harness::Worker.new(TRAP).ready
    frames = pages.map { |path, times| Harness.request({ "PATH_INFO" => path, "HTTP_X_TIMES" => times.to_s }) }
    worker.slots[0].send(frames.join)
    wait_until { worker.log.include?("called") && waits?(worker.pid) }
    Process.kill("USR1", worker.pid)
    worker
  end

  def waits?(pid)
    File.read("/proc/#{pid}/stat").rpartition(")")[2].split[0] == "S"
  end
end
