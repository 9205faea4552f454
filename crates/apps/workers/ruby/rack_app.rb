# frozen_string_literal: true

# Runs a Rack application (SPEC of Rack 2.2 and 3) for the requests of one slot. `boot` calls
# `serve` in each thread. For each request: env from `wire`, the application's call, then `response`
# sends one of: a complete response in one frame (arrays, and bodies whose first chunk is all that
# they declared), a stream of chunks, a file descriptor, or a stream that the body writes itself.
#
# # Invariants
# - `close` of a body is called exactly once whatever happens.
# - After an error the next request finds this thread in order.
module PenstockWorker
  # The application does something that Rack does not allow.
  class AppProtocolError < StandardError; end

  # One thread's application runner.
  class RackApp
    def initialize(slot, app, rack_major, is_native: NativePart.is_loaded)
      @slot = slot
      @app = app
      @rack_major = rack_major
      @is_native = is_native
    end

    # Answers requests until the server closes the slot.
    def serve
      @slot.bind_thread
      @plain = @slot.plain_slot(@rack_major) if @is_native
      loop do
        serve_plain if @plain
        request = @slot.receive or break
        serve_request(*request)
        # What the application has taken over is its own: nothing here may keep it open.
        request = nil
      end
    rescue Wire::Disconnected
      Forks.exit_if_forked_by_app
    end

    private

    # Answers requests with the native part, as long as it can receive them.
    def serve_plain
      while (env = @plain.receive)
        @slot.count_request
        run_request(env, nil)
        env = @slot.end_hijacked_call if @slot.hijacked
      end
    end

    def serve_request(env, body)
      started = Wire.micros
      is_whole = body.instance_of?(String)
      input = is_whole ? StringIO.new(body) : RequestBody.open(@slot, body, @rack_major)
      env["rack.input"] = input
      env["rack.hijack"] = @slot.hijacker
      env["rack.response_finished"] = [] if @rack_major >= 3
      run_request(env, Response.new(@slot, started, input, @rack_major))
      input.close unless is_whole
      @slot.end_hijacked_call if @slot.hijacked
    end

    # `response` is nil for a request that the native part has received, and stays nil if it answers.
    def run_request(env, response)
      error = nil
      begin
        result = @app.call(env)
        Forks.exit_if_forked_by_app unless Forks::HAS_HOOK
        unless response.nil? && respond_plainly(result)
          response ||= build_response
          @slot.hijacked ? response.finish_hijacked(result) : response.send(*checked_result(result))
        end
      rescue Wire::Disconnected, Wire::Error
        Forks.exit_if_forked_by_app
        raise
      rescue RequestBodyCut => error
        # No answer is awaited, and there is nothing to mend.
        Forks.exit_if_forked_by_app(error)
        fail_request(response, error)
      # SystemExit too: it ends the request, the server ends processes.
      rescue Exception => error # rubocop:disable Lint/RescueException
        Forks.exit_if_forked_by_app(error)
        log_exception(error, env)
        fail_request(response, error)
      end
    ensure
      response&.close { |failure| log_exception(failure, env) }
      run_finished_callbacks(env, response, result, error) if @rack_major >= 3
    end

    # Ends the response, unless the native part was interrupted while it sent one.
    def fail_request(response, error)
      return if response.nil? && @slot.ended?

      (response || build_response).fail(error)
    end

    # Has the native part send the usual result; false if it is another.
    def respond_plainly(result)
      return false unless result.instance_of?(Array) && result.size == 3

      body = result[2]
      return false unless body.instance_of?(Array) && body.size == 1

      is_sent = @plain.respond(result[0], result[1], body[0])
      raise Wire::Disconnected if is_sent.nil?

      is_sent
    end

    # A response of the scripts to a request that the native part has received.
    def build_response
      Response.new(@slot, @plain.started, @plain.input, @rack_major)
    end

    def checked_result(result)
      return result if result.is_a?(Array) && result.size == 3

      raise AppProtocolError, "the application returned #{result.class}, not an array of three"
    end

    def run_finished_callbacks(env, response, result, error)
      callbacks = env["rack.response_finished"]
      return if callbacks.nil? || callbacks.empty?

      status, headers = response ? [response.status, response.headers] : result
      callbacks.reverse_each do |callback|
        callback.call(env, status, headers, error)
      rescue Exception => failure # rubocop:disable Lint/RescueException
        log_exception(failure, env)
      end
    end

    # Writes one head line and the backtrace, in one piece, to standard error.
    def log_exception(error, env)
      path = "#{env["SCRIPT_NAME"]}#{env["PATH_INFO"]}".b.inspect[1..-2]
      text = error.full_message(highlight: false, order: :top)
      $stderr.write("error in #{env["REQUEST_METHOD"]} #{path}\n#{text.chomp}\n")
    rescue SystemCallError, IOError
      nil # The application has closed its standard error.
    end
  end
end
