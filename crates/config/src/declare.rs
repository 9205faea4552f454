//! The macros by which a table of the file is declared: its keys, their types, ranges, defaults
//! and descriptions, each once.
//!
//! [`section!`] makes a type of `model` with keys as fields; `keys!` declares a table that fills
//! fields elsewhere. The reference, the example, the JSON Schema and the readers follow.
//!
//! # Invariants
//! - The doc comment of a field is the description of its key.
//! - The default of a field is the default of its key, unless the declaration describes it in
//!   words.
//! - A word of a `choice!` is written once, beside its variant.

/// Declares a type and the table of the file that its fields are the keys of.
///
/// An item is `"key" => field: Type = default, Kind;`; the key may be left out where it is the
/// field's name. In this order may follow: `default "words"` or `default required` (what the
/// documentation says instead of the value), `shows "TOML"` (for types without a TOML form),
/// `example "TOML"`, `only "a place"`, and how the key is read:
///
/// - nothing: by the type's [`OptionValue`](crate::section::OptionValue);
/// - `by check(f)`: a text for which `f(&str)` is true;
/// - `by parse(f)`: a text that `f(&str)` gives a value for;
/// - `by within(f)`: the same with the findings, for paths: `f(&Findings, &str)`;
/// - `by items(f)`: a list of texts for each of which `f(&str)` is true;
/// - `by hand`: by a reader elsewhere.
///
/// `also` declares keys that have no field of their own, `plain` fields that have no key. With
/// parameters the type gets `new`, without it gets `Default`.
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        #[derive($($derive:ident),+)]
        pub struct $name:ident $(($($param:ident: $param_ty:ty),+))?
        in $section:literal, $heading:literal, $example:literal {
            $(
                $(#[doc = $field_doc:literal])+
                $($key:literal =>)? $field:ident: $ty:ty = $default:expr, $kind:expr
                    $(, default $said:tt)? $(, shows $shown:literal)?
                    $(, example $sample:literal)? $(, only $only:expr)?
                    $(, by $how:ident $(($reader:path))?)?;
            )+
        }
        $(also {
            $(
                $(#[doc = $also_doc:literal])+
                $also_key:literal: $also_kind:expr, $also_default:expr
                    $(, example $also_sample:literal)? $(, only $also_only:expr)?;
            )+
        })?
        $(plain {
            $(
                $(#[doc = $plain_doc:literal])+
                $plain:ident: $plain_ty:ty = $plain_default:expr;
            )+
        })?
    ) => {
        $(#[doc = $doc])+
        #[derive($($derive),+)]
        pub struct $name {
            $($( $(#[doc = $plain_doc])+ pub $plain: $plain_ty, )+)?
            $( $(#[doc = $field_doc])+ pub $field: $ty, )+
        }

        section!(@construct $name ($($($param: $param_ty),+)?) {
            $($($plain: $plain_default,)+)?
            $($field: $default,)+
        });

        impl $crate::section::Keys for $name {
            const DOC: $crate::options::SectionDoc = $crate::options::SectionDoc {
                name: $section,
                heading: $heading,
                example: $example,
                description: concat!($($doc),+).trim_ascii_start(),
                shared_keys: None,
                options: &[
                    $($crate::options::OptionRow {
                        section: $section,
                        key: section!(@key $field $($key)?),
                        kind: $kind,
                        default: section!(
                            @default [$ty] [$default] [$kind] $(default $said)? $(shows $shown)?
                        ),
                        example: section!(@sample $($sample)?),
                        only_for: section!(@only $($only)?),
                        description: concat!($($field_doc),+).trim_ascii_start(),
                    },)+
                    $($($crate::options::OptionRow {
                        section: $section,
                        key: $also_key,
                        kind: $also_kind,
                        default: $also_default,
                        example: section!(@sample $($also_sample)?),
                        only_for: section!(@only $($also_only)?),
                        description: concat!($($also_doc),+).trim_ascii_start(),
                    },)+)?
                ],
            };

            fn read_keys(&mut self, table: &$crate::section::Section<'_>) {
                let _ = table;
                $(section!(
                    @read self.$field, table, section!(@key $field $($key)?),
                    $($how $(($reader))?)?
                );)+
            }
        }
    };

    (@construct $name:ident () $body:tt) => {
        impl Default for $name {
            fn default() -> Self {
                Self $body
            }
        }
    };
    (@construct $name:ident ($($param:ident: $ty:ty),+) $body:tt) => {
        impl $name {
            /// The value with every default.
            pub fn new($($param: $ty),+) -> Self {
                Self $body
            }
        }
    };

    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };

    (@sample) => { None };
    (@sample $sample:literal) => { Some($sample) };

    (@only) => { "" };
    (@only $only:expr) => { $only };

    (@default [$ty:ty] [$value:expr] [$kind:expr]) => {
        $crate::options::OptionDefault::Of(|| {
            <$ty as $crate::section::OptionValue>::to_toml(&$value, &$kind)
        })
    };
    (@default [$ty:ty] [$value:expr] [$kind:expr] default required) => {
        $crate::options::OptionDefault::Required
    };
    (@default [$ty:ty] [$value:expr] [$kind:expr] default $said:literal) => {
        $crate::options::OptionDefault::Described($said)
    };
    (@default [$ty:ty] [$value:expr] [$kind:expr] shows $shown:literal) => {
        $crate::options::OptionDefault::Toml($shown)
    };

    (@read $target:expr, $table:ident, $key:expr, hand) => {};
    (@read $target:expr, $table:ident, $key:expr, ) => {
        $table.read($key, &mut $target)
    };
    (@read $target:expr, $table:ident, $key:expr, check($reader:path)) => {
        if let Some(text) = $table.parse_text($key, |text| $reader(text).then(|| text.to_owned())) {
            $crate::section::set(&mut $target, text.value);
        }
    };
    (@read $target:expr, $table:ident, $key:expr, parse($reader:path)) => {
        if let Some(value) = $table.parse_text($key, $reader) {
            $crate::section::set(&mut $target, value.value);
        }
    };
    (@read $target:expr, $table:ident, $key:expr, within($reader:path)) => {
        if let Some(value) = $table.parse_text($key, |text| $reader($table.findings, text)) {
            $crate::section::set(&mut $target, value.value);
        }
    };
    (@read $target:expr, $table:ident, $key:expr, items($reader:path)) => {
        if let Some(items) = $table.list($key, |text| $reader(text).then(|| text.to_owned())) {
            let items: Vec<_> = items.into_iter().map(|item| item.value).collect();
            $crate::section::set(&mut $target, items);
        }
    };
}

/// Declares a table that fills fields of a type that is read by hand.
///
/// An item is `"key": Kind, default;`, with `example "TOML"` and `only "a place"` behind it.
macro_rules! keys {
    (
        $(#[doc = $doc:literal])+
        $name:ident in $section:literal, $heading:literal, $example:literal {
            $(
                $(#[doc = $key_doc:literal])+
                $key:literal: $kind:expr, $default:expr
                    $(, example $sample:literal)? $(, only $only:expr)?;
            )+
        }
    ) => {
        $(#[doc = $doc])+
        pub(crate) const $name: $crate::options::SectionDoc = $crate::options::SectionDoc {
            name: $section,
            heading: $heading,
            example: $example,
            description: concat!($($doc),+).trim_ascii_start(),
            shared_keys: None,
            options: &[$($crate::options::OptionRow {
                section: $section,
                key: $key,
                kind: $kind,
                default: $default,
                example: section!(@sample $($sample)?),
                only_for: section!(@only $($only)?),
                description: concat!($($key_doc),+).trim_ascii_start(),
            },)+],
        };
    };
}

/// Declares an enumeration of words of the file.
macro_rules! choice {
    (
        $(#[$attribute:meta])+
        $vis:vis enum $name:ident {
            $( $(#[$variant_attribute:meta])+ $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$attribute])+
        $vis enum $name {
            $( $(#[$variant_attribute])+ $variant, )+
        }

        impl $name {
            /// The words of the file, in the order of the variants.
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word used for it in the file.
            $vis fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The variant of a word.
            pub(crate) fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl $crate::section::OptionValue for $name {
            fn from_key(
                table: &$crate::section::Section<'_>,
                key: &'static str,
            ) -> Option<Self> {
                table.parse_text(key, Self::from_word).map(|word| word.value)
            }

            fn to_toml(&self, _: &$crate::options::OptionKind) -> String {
                format!("{:?}", self.as_str())
            }
        }
    };
}
