# frozen_string_literal: true

# Starts real workers with applications that misbehave: each costs only its own request.

require "minitest/autorun"
require_relative "harness"

class RobustTest < Minitest::Test
  Wire = PenstockWorker::Wire
  BAD = Harness.request({ "PATH_INFO" => "/bad" })

  BUSY = <<~'RUBY'
    def stuck_in_here
      $stderr.syswrite("waiting\n")
      sleep
    end
    run ->(env) { stuck_in_here if env["PATH_INFO"] == "/bad"; [200, {}, ["fine"]] }
  RUBY

  # Returns an application that runs `body` for `/bad`, and answers other paths.
  def app(body, head = "")
    "#{head}\nrun lambda { |env|\nif env['PATH_INFO'] == '/bad'\n#{body}\nend\n[200, {}, ['fine']]\n}\n"
  end

  def start(source, **options)
    worker = Harness::Worker.new(source, **options)
    yield worker.ready
  ensure
    worker&.stop
  end

  def forked(source, **sockets)
    template = Harness::Template.new(source).ready
    worker = template.fork(**sockets)
    yield worker.ready, template
  ensure
    worker&.stop
    template&.stop
  end

  def wait_for(what)
    Timeout.timeout(Harness::DEADLINE, nil, what) { Thread.pass until yield }
  end

  def kill(pid)
    Process.kill("KILL", pid)
  end

  def fine(worker, slot: 0)
    assert_equal "fine", worker.ask(Harness.request, slot: slot).body
  end

  def test_small_descriptors_are_not_ours
    close = "(3..99).each { |fd| begin; IO.for_fd(fd).close; rescue SystemCallError, ArgumentError; end }"
    write = "(3..99).each { |fd| begin; IO.for_fd(fd, autoclose: false).syswrite('garbage'); " \
            "rescue SystemCallError, IOError, ArgumentError; end }"
    [close, write].product([1, 2]).each do |body, slots|
      start(app(body), slots: slots) do |worker|
        worker.ask(BAD)
        fine(worker)
      end
    end
  end

  def test_nor_in_a_forked_worker
    close = "(3..99).each { |fd| begin; IO.for_fd(fd).close; rescue SystemCallError, ArgumentError; end }"
    forked(app(close), slots: 2) do |worker|
      worker.ask(BAD)
      fine(worker, slot: 1)
    end
  end

  def test_closed_standard_streams_cost_nothing
    close = "$stdout.close; $stderr.close"
    ["", "raise IOError", "$stdout.puts 'x'", "warn 'x'"].each do |after|
      start(app("#{close}\n#{after}")) do |worker|
        worker.ask(BAD)
        fine(worker)
      end
    end
  end

  def test_closed_while_loading_too
    forked(app("raise IOError", "$stdout.close; $stderr.close")) do |worker|
      assert_equal "application raised IOError", worker.ask(BAD).reason
      fine(worker)
    end
  end

  def test_exceptions_that_end_programs_end_the_request
    ["exit 3", "exit", "raise Interrupt", "raise SignalException, 'TERM'", "abort 'no'"].each do |body|
      start(app(body), slots: 2) do |worker|
        assert_equal [Wire::FAILED], worker.ask(BAD).frames
        fine(worker)
      end
    end
  end

  def test_a_process_that_ends_itself_closes_its_sockets
    start(app("exit!(7)"), slots: 2) do |worker|
      worker.slots[1].send(BAD)
      assert_raises(EOFError) { worker.slots[0].frame }
      assert_equal 7, worker.wait.exitstatus
    end
  end

  def test_ignored_signals_are_no_shield
    start(app("trap('TERM', 'IGNORE')")) do |worker|
      worker.ask(BAD)
      Process.kill("TERM", worker.pid)
      fine(worker)
      kill(worker.pid)
      assert_equal Signal.list["KILL"], worker.wait.termsig
    end
  end

  def test_a_child_that_comes_back_answers_nothing
    ["fork", "raise 'child' unless fork", "exit unless fork"].product([1, 2]).each do |body, slots|
      start(app(body, "at_exit { $stderr.puts 'bye' }"), slots: slots) do |worker|
        assert_equal "fine", worker.ask(BAD).body
        fine(worker)
        wait_for("the child goes on") { ended?(worker.pid) }
        fine(worker)
        assert_equal body != "exit unless fork", worker.log.include?("came back")
        refute_includes worker.log, "bye"
      end
    end
  end

  def test_a_child_with_a_block_of_its_own_works
    start(app("Process.wait(fork { $stderr.puts 'worked' })\nraise unless $?.success?")) do |worker|
      assert_equal "fine", worker.ask(BAD).body
      assert_equal "worked\n", worker.log
    end
  end

  def test_a_child_that_streams_is_ended_too
    start("run ->(_env) { [200, {}, Enumerator.new { |out| out << 'one'; fork; out << 'two' }] }") do |worker|
      2.times { assert_equal "onetwo", worker.ask(Harness.request).body }
    end
  end

  def test_a_child_keeps_no_socket
    skip "Process._fork came with Ruby 3.1" unless Process.respond_to?(:_fork)
    source = app("child = fork { sleep }\nreturn [200, {}, [child.to_s]]")
    check = lambda do |worker, *|
      child = worker.ask(BAD).body.to_i
      wait_for("a socket stays open") { sockets_of(child).empty? }
    ensure
      kill(child) if child
    end
    start(source, &check)
    forked(source, &check)
  end

  def sockets_of(pid)
    Dir["/proc/#{pid}/fd/*"].map { |link| File.readlink(link) }.grep(/\Asocket:/)
  rescue Errno::ENOENT
    ["socket: unknown"]
  end

  def test_a_child_that_comes_back_from_loading_does_not_serve
    start(app("", "fork")) do |worker|
      fine(worker)
      wait_for("the child goes on") { worker.log.include?("came back") }
    end
  end

  def quit_and_look(worker, sought)
    worker.slots[0].send(BAD)
    wait_for("the request never began") { worker.log.include?("waiting") }
    Process.kill("QUIT", worker.pid)
    wait_for("no #{sought} is shown") { worker.log.include?(sought) }
    assert_includes worker.log, "stack of every thread (pid #{worker.pid})\n"
  end

  def test_stacks_of_all_threads_are_shown_and_the_process_goes_on
    [1, 2].each do |slots|
      start(BUSY, slots: slots) do |worker|
        # All threads have begun once all have answered.
        slots.times { |slot| fine(worker, slot: slot) }
        quit_and_look(worker, "in `stuck_in_here'")
        assert_equal slots == 1 ? 1 : 3, worker.log.scan(/^#<Thread/).size
        fine(worker, slot: 1) if slots > 1
        kill(worker.pid)
      end
    end
  end

  def test_also_in_a_forked_worker_with_its_own_standard_error
    forked(BUSY) do |worker, template|
      quit_and_look(worker, "in `stuck_in_here'")
      assert_equal "", template.log
      kill(worker.pid)
    end
  end

  def test_also_when_standard_error_is_closed
    start(BUSY.sub("sleep", "$stderr.close\n  sleep")) do |worker|
      quit_and_look(worker, "in `stuck_in_here'")
      kill(worker.pid)
    end
  end

  # A child that ends while the worker waits for a request interrupts the read.
  def test_a_signal_neither_ends_a_worker_that_waits_nor_repeats_a_request
    source = "count = 0; run ->(_env) { [200, {}, [[count += 1, fork { sleep }].inspect]] }"
    start(source) do |worker|
      (1..5).each do |number|
        count, child = JSON.parse(worker.ask(BAD).body)
        kill(child)
        assert_equal number, count, "each request once"
        wait_for("the child goes on") { ended?(worker.pid) }
        Process.kill("QUIT", worker.pid)
        wait_for("no stack") { worker.log.scan("stack of every").size == number }
      end
    end
  end

  # Returns whether every child of a process is a zombie or gone.
  def ended?(pid)
    children = Dir["/proc/#{pid}/task/*/children"].flat_map { |path| File.read(path).split }
    children.all? { |child| File.read("/proc/#{child}/stat").rpartition(")")[2].split[0] == "Z" }
  end
end
