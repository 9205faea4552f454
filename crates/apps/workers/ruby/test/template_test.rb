# frozen_string_literal: true

# Starts real templates: what workers share with them, and what they must not.

require "minitest/autorun"
require_relative "harness"

class TemplateTest < Minitest::Test
  Wire = PenstockWorker::Wire

  HELLO = <<~'RUBY'
    LOADED = [Process.pid, Process.clock_gettime(Process::CLOCK_MONOTONIC)]
    $stderr.puts "loaded"
    run lambda { |_env|
      [200, {}, [[LOADED, Process.pid, Process.ppid, Process.getpgid(0), rand].inspect]]
    }
  RUBY

  def start(kind, source, **options)
    process = Harness.const_get(kind).new(source, **options)
    yield process
  ensure
    process&.stop
  end

  def template(source = HELLO, **options)
    start(:Template, source, **options) { |template| yield template.ready }
  end

  def forked(template, **sockets)
    worker = template.fork(**sockets)
    yield worker
  ensure
    worker&.stop
  end

  # Returns what a worker of HELLO reports: loaded, pid, parent, group, a random number.
  def facts(worker, slot: 0)
    JSON.parse(worker.ask(Harness.request, slot: slot).body)
  end

  def children
    File.read("/proc/#{Process.pid}/task/#{Process.pid}/children").split.map(&:to_i)
  end

  def sockets_of(pid)
    Dir["/proc/#{pid}/fd/*"].map { |link| File.readlink(link) }.grep(/\Asocket:/)
  end

  def test_workers_share_the_code_and_are_children_of_the_server
    template do |template|
      refute template.description.key?("prevents_fork")
      forked(template) do |one|
        forked(template) do |two|
          said = [one, two].map { |worker| facts(worker.ready) }
          assert_equal said[0][0], said[1][0], "loaded once"
          assert_equal template.pid, said[0][0][0]
          [one, two].zip(said) do |worker, (_, own, parent, group)|
            assert_equal [worker.pid, Process.pid, worker.pid], [own, parent, group]
          end
          refute_equal said[0][4], said[1][4], "random numbers differ"
        end
      end
      assert_equal "loaded\n", template.log
    end
  end

  def test_workers_write_to_their_own_standard_streams
    source = <<~'RUBY'
      run lambda { |env|
        $stdout.puts "out"
        env["rack.errors"].puts "err"
        system("echo child; echo child >&2")
        [200, {}, []]
      }
    RUBY
    template(source) do |template|
      forked(template) do |worker|
        worker.ready.ask(Harness.request)
        assert_equal "err\nchild\n", worker.log
        assert_equal "out\nchild\n", File.read(worker.stdout.path)
        assert_equal "", template.log
      end
    end
  end

  def test_an_application_that_gives_its_standard_error_another_meaning_keeps_it
    source = <<~'RUBY'
      $stderr.reopen("own.log", "w")
      run ->(_env) { $stderr.syswrite("mine"); [200, {}, []] }
    RUBY
    template(source) do |template|
      forked(template) do |worker|
        worker.ready.ask(Harness.request)
        assert_equal "", worker.log
        assert_equal "mine", File.read("#{template.dir}/own.log")
      end
    end
  end

  def test_many_slots_come_in_several_frames
    template do |template|
      forked(template, slots: 70, spares: 3) do |worker|
        worker.ready(at_once: 31)
        assert_equal [worker.pid], Array.new(70) { |slot| facts(worker, slot: slot)[1] }.uniq
      end
    end
  end

  def test_a_worker_holds_nothing_of_its_template
    template do |template|
      forked(template) do |first|
        forked(template) do |second|
          held = [template, first.ready, second.ready].map { |process| sockets_of(process.pid).uniq }
          assert_equal [1, 2, 2], held.map(&:size)
          assert_equal 5, held.flatten.uniq.size
        end
      end
    end
  end

  def test_handlers_at_exit_run_in_workers_only_and_once
    template("at_exit { $stderr.puts 'bye' }\n#{HELLO}") do |template|
      forked(template) do |worker|
        worker.ready.ask(Harness.request)
        worker.slots[0].socket.close
        worker.control.socket.close
        assert_equal 0, worker.wait.exitstatus
        assert_equal "bye\n", worker.log
      end
      template.control.socket.close
      assert_equal 0, template.wait.exitstatus
      assert_equal "loaded\n", template.log
    end
  end

  def test_a_worker_outlives_its_template_and_stays_when_its_slots_are_closed
    template do |template|
      forked(template) do |worker|
        worker.ready
        template.control.socket.close
        assert_equal 0, template.wait.exitstatus
        assert_equal worker.pid, facts(worker)[1]
        worker.slots[0].socket.close
        worker.control.socket.close
        assert_equal 0, worker.wait.exitstatus
      end
    end
  end

  def test_a_template_reaps_and_a_signal_ends_a_worker_only
    template do |template|
      forked(template) do |worker|
        worker.ready
        # The worker may be ready before the template has reaped the process between them.
        children = "/proc/#{template.pid}/task/#{template.pid}/children"
        Timeout.timeout(Harness::DEADLINE) { Thread.pass until File.read(children).empty? }
        Process.kill("TERM", worker.pid)
        assert_equal Signal.list["TERM"], worker.wait.termsig
        forked(template) { |other| assert_equal other.ready.pid, facts(other)[1] }
      end
    end
  end

  def test_a_worker_whose_server_is_not_its_parent_ends
    # The number of this process's parent, which is never the worker's.
    template(HELLO, options: ["--server-pid", Process.ppid.to_s]) do |template|
      before = children
      forked(template) do |worker|
        assert_raises(EOFError) { worker.control.frame }
        worker.pid = (children - before).fetch(0)
        assert_equal 1, worker.wait.exitstatus
      end
    end
  end

  def test_a_fork_that_fails_is_told
    skip "Process._fork came with Ruby 3.1" unless Process.respond_to?(:_fork)
    # Ruby retries for ever when there are too many processes (EAGAIN): the server's timeout ends
    # it.
    source = <<~'RUBY'
      Process.singleton_class.prepend(Module.new { def _fork = raise(Errno::ENOMEM) })
    RUBY
    template(source + HELLO) do |template|
      forked(template) do
        frame = template.control.frame
        assert_equal Wire::FORK_FAILED, frame.kind
        assert_equal 7, frame.payload.unpack1("Q<")
        assert_includes frame.payload, "Cannot allocate memory"
      end
    end
  end

  def test_code_that_cannot_be_forked_is_named
    {
      "PenstockWorker.prevent_fork('a \"pipe\"')\n" => 'a "pipe"',
      "PenstockWorker.prevent_fork\n" => "the application said prevent_fork"
    }.each do |source, reason|
      template(source + HELLO) { |template| assert_equal reason, template.description["prevents_fork"] }
    end
  end

  def test_threads_of_ruby_prevent_nothing_and_are_named
    source = <<~'RUBY'
      Thread.new { sleep }.name = "pump"
      Thread.new { sleep }
      (own = Thread.new { sleep }).name = "known"
      own.thread_variable_set(:fork_safe, true)
    RUBY
    template(source + HELLO) do |template|
      refute template.description.key?("prevents_fork")
      assert_equal "pump, config.ru:2", template.description["leaves_threads"]
      forked(template) { |worker| assert_equal worker.ready.pid, facts(worker)[1] }
    end
  end

  def test_threads_that_have_ended_prevent_nothing
    template("Array.new(5) { Thread.new { 1 } }.each(&:join)\n#{HELLO}") do |template|
      assert_equal %w[interface interpreter pid], template.description.keys.sort
    end
  end

  NATIVE = <<~'RUBY'
    require "fiddle"
    libc = Fiddle.dlopen(nil)
    types = [Fiddle::TYPE_VOIDP] * 4
    create = Fiddle::Function.new(libc["pthread_create"], types, Fiddle::TYPE_INT)
    2.times { create.call("\0" * 8, nil, libc["pause"], nil) }
    Array.new(5) { Thread.new { 1 } }.each(&:join)
    Thread.new { sleep }.name = "pump"
  RUBY

  def test_threads_of_libraries_prevent_it_unless_it_is_to_be_forked_anyway
    template(NATIVE + HELLO) do |template|
      assert_equal "2 native threads run", template.description["prevents_fork"]
      refute template.description.key?("leaves_threads")
    end
    template(NATIVE + HELLO, options: ["--ignore-threads"]) do |template|
      refute template.description.key?("prevents_fork")
      forked(template) { |worker| assert_equal worker.ready.pid, facts(worker)[1] }
    end
    template("PenstockWorker.prevent_fork('no')\n#{HELLO}", options: ["--ignore-threads"]) do |template|
      assert_equal "no", template.description["prevents_fork"]
    end
  end

  def test_a_broken_application_does_not_become_a_template
    start(:Template, "1 / 0\n") do |template|
      frame = template.control.frame
      assert_equal Wire::BOOT_FAILED, frame.kind
      assert_includes frame.payload, "ZeroDivisionError"
      assert_equal 1, template.wait.exitstatus
    end
  end

  def test_nonsense_on_the_control_socket_ends_a_template
    [Wire.frame(Wire::PROMOTE, 0, ""), "GET / HTTP/1.1\r\n\r\n"].each do |data|
      template do |template|
        template.control.socket.write(data)
        assert_equal 1, template.wait.exitstatus
        assert_includes template.log, "PenstockWorker::Wire::Error"
      end
    end
  end

  # Makes a worker a template, then forks two workers from it.
  def promote(worker, loaded_by)
    (worker.slots + worker.spares).each { |slot| slot.socket.close }
    worker.control.socket.write(Wire.frame(Wire::PROMOTE, 0, ""))
    frame = worker.control.frame
    assert_equal Wire::READY, frame.kind
    refute_includes frame.payload, "prevents_fork"
    [2, 1].each do |slots|
      child = Harness::Forked.new(worker.control, slots: slots)
      said = facts(child.ready)
      assert_equal [loaded_by, child.pid, Process.pid], [said[0][0], said[1], said[2]]
    ensure
      child&.stop
    end
  end

  def test_a_forked_worker_becomes_a_template
    [[1, 0], [3, 2]].each do |slots, spares|
      template do |template|
        forked(template, slots: slots, spares: spares) do |worker|
          facts(worker.ready)
          template.control.socket.close
          promote(worker, template.pid)
        end
      end
    end
  end

  def test_a_spawned_worker_that_stays_becomes_a_template
    template { nil }
    start(:Worker, HELLO, slots: 2, options: ["--may-become-template"]) do |worker|
      facts(worker.ready)
      promote(worker, worker.pid)
    end
  end

  def test_a_request_may_forbid_it
    source = 'run ->(env) { env["penstock.prevent_fork"].call("a socket is shared"); [200, {}, []] }'
    start(:Worker, source, options: ["--may-become-template"]) do |worker|
      worker.ready.ask(Harness.request)
      worker.slots[0].socket.close
      worker.control.socket.write(Wire.frame(Wire::PROMOTE, 0, ""))
      assert_includes worker.control.frame.payload, '"prevents_fork": "a socket is shared"'
    end
  end

  def test_a_worker_that_does_not_stay_refuses
    start(:Worker, HELLO, slots: 2) do |worker|
      worker.ready.control.socket.write(Wire.frame(Wire::PROMOTE, 0, ""))
      assert_equal 1, worker.wait.exitstatus
    end
  end
end
