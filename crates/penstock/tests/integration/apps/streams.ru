# frozen_string_literal: true

# Holds streams by responding with GRIP fields, and echoes the request.
run(lambda do |env|
  kind, name = env["PATH_INFO"].delete_prefix("/").split("/", 2)
  case kind
  when "stream"
    headers = { "content-type" => "text/event-stream", "grip-hold" => "stream", "grip-channel" => name, "x-own" => "yes" }
    [200, headers, ["data: welcome\n\n"]]
  when "pid"
    [200, { "content-type" => "text/plain" }, [Process.pid.to_s]]
  when "grip"
    seen = env.select { |key, _| key.upcase.include?("GRIP") }.sort
    [200, { "content-type" => "text/plain" }, [seen.map { |key, value| "#{key}=#{value}" }.join("\n")]]
  else
    [200, { "content-type" => "text/plain" }, [env["PATH_INFO"]]]
  end
end)
