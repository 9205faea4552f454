# frozen_string_literal: true

# Units and their conversions: pure arithmetic, no web.
#
# Every unit of a kind has its size in a common one (and, for temperatures, an offset), so n units
# need n rows and not n * n formulas. app.rb uses only names and conversions.
module Units
  Unit = Struct.new(:key, :name, :kind, :size, :offset)

  ALL = [
    Unit.new("mm", "millimetres", :length, 1r / 1000, 0),
    Unit.new("m", "metres", :length, 1r, 0),
    Unit.new("km", "kilometres", :length, 1000r, 0),
    Unit.new("in", "inches", :length, 254r / 10_000, 0),
    Unit.new("ft", "feet", :length, 3048r / 10_000, 0),
    Unit.new("mi", "miles", :length, 1_609_344r / 1000, 0),
    Unit.new("g", "grams", :mass, 1r / 1000, 0),
    Unit.new("kg", "kilograms", :mass, 1r, 0),
    Unit.new("oz", "ounces", :mass, 45_359_237r / 1_600_000_000, 0),
    Unit.new("lb", "pounds", :mass, 45_359_237r / 100_000_000, 0),
    Unit.new("C", "degrees Celsius", :temperature, 1r, 27_315r / 100),
    Unit.new("F", "degrees Fahrenheit", :temperature, 5r / 9, 45_967r / 100),
    Unit.new("K", "kelvins", :temperature, 1r, 0)
  ].to_h { |unit| [unit.key, unit] }.freeze

  # Twelve digits either side of the point are enough, and keep conversions fast.
  NUMBER = /\A[+-]?\d{1,12}(?:[.,]\d{1,12})?\z/

  class Mistake < StandardError; end

  # Converts the number in `text` from the unit `from` to a decimal number of `to`. Raises Mistake
  # with the reason.
  def self.convert(text, from, to)
    source, target = [from, to].map do |key|
      ALL.fetch(key) { raise Mistake, "There is no unit “#{key}”." }
    end
    raise Mistake, "“#{text}” is not a number." unless NUMBER.match?(text)
    raise Mistake, "There is no way from #{source.name} to #{target.name}." if source.kind != target.kind

    plain(((text.tr(",", ".").to_r + source.offset) * source.size / target.size) - target.offset)
  end

  # Ten significant digits, without the ".0" of a whole number: 0.1 km is 100 m, not 100.0.
  def self.plain(number)
    return "0" if number.zero?

    digits = 9 - Math.log10(number.abs.to_f).floor
    rounded = number.round(digits)
    format("%.#{[digits, 0].max}f", rounded).then { |text| text.include?(".") ? text.sub(/\.?0+\z/, "") : text }
  end
  private_class_method :plain
end
