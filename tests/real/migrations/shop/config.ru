# frozen_string_literal: true

# The application that the pages of docs/migrate/from move, in Ruby.
run(lambda do |environ|
  target = [environ["PATH_INFO"], environ["QUERY_STRING"]].join(" ")
  [200, { "content-type" => "text/plain" }, ["#{target} #{ENV.fetch("RACK_ENV")}\n"]]
end)
