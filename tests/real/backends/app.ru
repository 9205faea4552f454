# frozen_string_literal: true

# The application of the table of requests, for Ruby servers (Rack 2).

require "digest"

PIECE = ("0123456789abcdef" * 4096).b

class Pattern
  def initialize(length) = @left = length

  def each
    while @left.positive?
      yield PIECE.byteslice(0, @left)
      @left -= PIECE.bytesize
    end
  end
end

class Gate
  def initialize(path) = @path = path

  def each
    yield "first"
    sleep 0.005 until File.exist?(@path)
    yield "last"
  end
end

class Pieces
  def each
    yield "one"
    yield "two" * 5000
    yield "three"
  end
end

def digest(input)
  length = 0
  md5 = Digest::MD5.new
  while (piece = input.read(65_536))
    length += piece.bytesize
    md5 << piece
  end
  "#{length} #{md5.hexdigest}"
end

def fields(env)
  names = %w[HTTP_HOST HTTP_X_FORWARDED_FOR HTTP_X_ODD QUERY_STRING HTTP_COOKIE]
  # Some servers pass the path as it was sent, some decode it.
  path = env["PATH_INFO"].b.gsub(/%\h\h/) { |code| code[1..].hex.chr }
  [*names.map { |name| "#{name}=#{env[name]}".b }, "PATH=".b + path].join("\n")
end

APP = lambda do |env|
  method = env["REQUEST_METHOD"]
  what, rest = env["PATH_INFO"].delete_prefix("/").split("/", 2)
  headers = { "Content-Type" => "text/plain" }
  status = 200
  case what
  when "status"
    status = rest.to_i
    headers["X-Status"] = rest
    body = ["why"]
    if [204, 304].include?(status)
      headers.delete("Content-Type")
      body = []
    end
  when "big"
    headers["Content-Length"] = rest
    body = Pattern.new(rest.to_i)
  when "chunks" then body = Pieces.new
  when "gate" then body = Gate.new(File.join(ENV.fetch("FOLDER"), rest))
  when "fields"
    headers["Set-Cookie"] = "a=1; Path=/\nb=2; Path=/"
    body = [fields(env)]
  else
    text = "#{method} #{env["PATH_INFO"]} #{digest(env["rack.input"])}"
    headers["Content-Length"] = text.bytesize.to_s
    body = [text]
  end
  [status, headers, method == "HEAD" ? [] : body]
end

run APP
