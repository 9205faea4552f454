//! The scenario file as written: names and types of its keys, without checks of their values.
//!
//! `checked` reads it. Unknown keys are refused here; spans are kept where `checked` may find an
//! error.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use toml::Spanned;

type Text = Spanned<String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) title: Text,
    pub(super) first: Option<Text>,
    #[serde(default)]
    pub(super) setup: Vec<Text>,
    pub(super) rounds: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) together: bool,
    pub(super) cores: Option<Cores>,
    pub(super) ready_timeout: Option<Text>,
    pub(super) load: Option<Spanned<Load>>,
    pub(super) loads: Option<Spanned<Vec<Spanned<Load>>>>,
    pub(super) beside: Option<Spanned<Beside>>,
    #[serde(default)]
    pub(super) deployments: Vec<Spanned<Deployment>>,
    #[serde(default)]
    pub(super) goals: Vec<Spanned<Goal>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cores {
    pub(super) server: usize,
    pub(super) load: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    pub(super) name: Option<Text>,
    pub(super) path: Option<Text>,
    pub(super) paths: Option<Spanned<Vec<Text>>>,
    pub(super) paths_file: Option<Text>,
    pub(super) order: Option<Text>,
    pub(super) connections: Spanned<Connections>,
    pub(super) requests: Option<Spanned<u64>>,
    pub(super) duration: Option<Text>,
    pub(super) warm_up: Option<Text>,
    pub(super) cool_down: Option<Text>,
    pub(super) keepalive: Option<bool>,
    pub(super) method: Option<Text>,
    #[serde(default)]
    pub(super) headers: BTreeMap<Text, Text>,
    pub(super) body_file: Option<Text>,
    pub(super) timeout: Option<Text>,
    pub(super) rate: Option<Spanned<f64>>,
    pub(super) expect: Option<Spanned<Expect>>,
    pub(super) alone: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) status: Option<Spanned<u16>>,
    pub(super) body: Option<String>,
    pub(super) contains: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deployment {
    pub(super) name: Text,
    #[serde(default)]
    pub(super) setup: Vec<Text>,
    #[serde(default)]
    pub(super) files: BTreeMap<Text, Text>,
    #[serde(default)]
    pub(super) start: Vec<Text>,
    #[serde(default)]
    pub(super) env: BTreeMap<Text, Text>,
    pub(super) url: Option<Text>,
    #[serde(default)]
    pub(super) versions: Vec<Text>,
    pub(super) memory: Option<Text>,
    pub(super) disk_read: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beside {
    #[serde(default)]
    pub(super) files: BTreeMap<Text, Text>,
    #[serde(default)]
    pub(super) start: Vec<Text>,
    pub(super) url: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Goal {
    pub(super) deployment: Text,
    pub(super) connections: Option<Spanned<u32>>,
    pub(super) cpu_ratio: Option<Spanned<f64>>,
    pub(super) requests_ratio: Option<Spanned<f64>>,
    pub(super) memory_ratio: Option<Spanned<f64>>,
    pub(super) p99_ratio: Option<Spanned<f64>>,
    pub(super) p99_ms: Option<Spanned<f64>>,
    pub(super) cpu_us: Option<Spanned<f64>>,
    pub(super) requests_held: Option<Spanned<f64>>,
    pub(super) errors: Option<Spanned<u64>>,
    pub(super) of_alone: Option<Spanned<f64>>,
    pub(super) p99_of_alone: Option<Spanned<f64>>,
    pub(super) load: Option<Text>,
    pub(super) to: Option<Text>,
}

/// A number, a list of numbers, or a range. Deserialised by hand: an untagged enum would lose the
/// positions of errors inside it.
#[derive(Debug)]
pub(super) enum Connections {
    One(u32),
    List(Vec<u32>),
    Range(Range),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) step: Option<u32>,
    pub(super) factor: Option<f64>,
}

impl<'de> Deserialize<'de> for Connections {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConnectionsVisitor)
    }
}

struct ConnectionsVisitor;

impl<'de> Visitor<'de> for ConnectionsVisitor {
    type Value = Connections;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a number, a list of numbers, or { from, to, step } or { from, to, factor }")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Connections, E> {
        u32::try_from(number)
            .map(Connections::One)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Connections, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Connections::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Connections, A::Error> {
        Range::deserialize(MapAccessDeserializer::new(map)).map(Connections::Range)
    }
}
