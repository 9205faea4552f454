# frozen_string_literal: true

# A stand-in for Rack 3: the few names that the worker and the test application use, with Rack 3's
# behaviour where it differs from Rack 2. `parse_file` returns the application alone, and `to_ary`
# of a body closes it. With RACK3_HOME a real Rack 3 replaces it.
module Rack
  def self.release
    "3.0.0-stand-in"
  end

  # Evaluates a config.ru.
  class Builder
    def self.parse_file(path)
      builder = new
      builder.instance_eval(File.read(path), path)
      builder.to_app
    end

    def run(app)
      @app = app
    end

    def to_app
      @app || raise("missing run or map statement")
    end
  end

  # Raises at a second close, to catch a server that closes a body after `to_ary` has.
  class BodyProxy
    def initialize(body, &block)
      @body = body
      @block = block
    end

    def to_ary
      @body.to_ary
    ensure
      close
    end

    def each(&block)
      @body.each(&block)
    end

    def close
      raise "closed twice" if @closed

      @closed = true
      @block.call
    end
  end

  # Checks nothing; the real one does.
  class Lint
    def initialize(app)
      @app = app
    end

    def call(env)
      @app.call(env)
    end
  end
end
