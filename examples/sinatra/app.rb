# frozen_string_literal: true

# A unit converter: one value by a form, many by a pasted list.
#
# config.ru runs it; the arithmetic is in units.rb. It stores nothing, so any number of processes
# and threads may serve it. The files in public/ never reach this code: the server sends files that
# exist and passes other requests to the application.

require "sinatra/base"
require_relative "units"

# The pages. GET / converts one value (`?value=3&from=mi&to=km`), POST /list one a line.
class Converter < Sinatra::Base
  LINES_MAX = 10_000

  disable :static
  set :views, File.join(__dir__, "views")

  get "/" do
    @value, @from, @to = texts("value", "from", "to")
    @result = Units.convert(@value, @from, @to) if params.key?("value")
    erb :converter
  rescue Units::Mistake => e
    @mistake = e.message
    status 400
    erb :converter
  end

  post "/list" do
    content_type "text/csv"
    values, from, to = texts("values", "from", "to")
    lines = values.lines(chomp: true).map(&:strip).reject(&:empty?)
    halt 413, "At most #{LINES_MAX} lines.\n" if lines.size > LINES_MAX

    ["#{from},#{to}\n", *lines.map { |line| "#{line},#{Units.convert(line, from, to)}\n" }].join
  rescue Units::Mistake => e
    content_type "text/plain"
    halt 400, "#{e.message}\n"
  end

  helpers do
    # Returns the parameters of these names as clean text, in whatever form they were sent.
    def texts(*names)
      params.values_at(*names).map { |value| value.to_s.scrub.strip }
    end

    def h(text)
      ERB::Util.html_escape(text)
    end

    def options(chosen)
      Units::ALL.values.group_by(&:kind).map do |kind, units|
        [kind, units.map { |unit| [unit.key, unit.name, unit.key == chosen] }]
      end
    end
  end
end
