# frozen_string_literal: true

# A Rack application that works: a page with the first hundred of some thousand rows, sorted anew
# and rendered by ERB for each request. That takes 2 to 5 ms, during which the process can do
# nothing else: it holds the interpreter's lock and never waits.
#
# rack.toml deploys it in every way that it compares. It stands for an action of Rails: the
# differences between those ways only show when a request costs more than its transport.

require "erb"

ROWS = Array.new(3000) { |n| ["Item <#{n}>", (n * 7919) % 1000, (n * 104_729) % 100_000 / 100.0] }.freeze
TEMPLATE = ERB.new(<<~PAGE, trim_mode: "-")
  <!doctype html>
  <title>Stock</title>
  <table>
  <%- rows.each do |name, count, price| -%>
  <tr><td><%= ERB::Util.html_escape(name) %></td><td><%= count %></td><td><%= format("%.2f", price) %></td></tr>
  <%- end -%>
  </table>
PAGE

run(lambda do |_env|
  rows = ROWS.sort_by { |name, count, price| [-count, price, name] }.first(100)
  body = TEMPLATE.result_with_hash(rows: rows)
  [200, { "content-type" => "text/html; charset=utf-8", "content-length" => body.bytesize.to_s }, [body]]
end)
