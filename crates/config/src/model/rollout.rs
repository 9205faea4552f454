//! A route with several back ends: the `split` and the `mirror` of a route.

use std::time::Duration;

use super::Conditions;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::options::{SectionDoc, SharedKeys};
use crate::rollout::Share;

section! {
    /// One part of the requests of a route, with its back end. Caches and GRIP work for each part
    /// as for a route of its own.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SplitPart(weight: u32)
    in "sites.routes.split", "split = [{ ... }] in [[sites.routes]]", "" {
        /// Application that gets the part.
        app: Option<String> = None, Text("the name of an [apps.NAME] table"), default "no app",
            example r#""hello""#, by hand;
        /// Upstream that gets the part.
        upstream: Option<String> = None, Text(UPSTREAM_NAME), default "no upstream",
            example r#""legacy""#, only "a part without `app`", by hand;
        /// Its share, in proportion to the weights of all parts. A part with 0 only gets requests
        /// that its `match` forces there.
        weight: u32 = weight, Number(0, 1_000_000), default required, example "95";
        /// Requests that always get this part, such as those of testers; of several parts the
        /// first that fits. Their clients get no cookie.
        "match" => conditions: Conditions = Conditions::default(),
            OrTable(&Texts(CONDITION_NAME), "sites.routes.split.match"), default "none",
            example r#"{ header = { X-Group = "next" } }"#, by hand;
    }
}

pub(crate) const SPLIT_MATCH: SectionDoc = SectionDoc {
    name: "sites.routes.split.match",
    heading: "match = { ... } in split of [[sites.routes]]",
    example: "",
    description: "Which requests always get a part.",
    shared_keys: Some(SharedKeys {
        section: "sites.routes.match",
        except: &[],
    }),
    options: &[],
};

/// How a client stays at its part of a `split`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitBy {
    /// It does not: each request is by itself.
    Request,
    /// By a cookie of Penstock.
    Cookie(SplitCookie),
    /// By its address; of IPv6 the first 64 bits.
    Client,
    /// By the value of a field; without it by the address.
    Header(String),
    /// By the value of a cookie of the application; without it by the address.
    CookieValue(String),
}

section! {
    /// A cookie that keeps a client at its part of a `split`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SplitCookie
    in "sites.routes.split_by", "split_by = { ... } in [[sites.routes]]", "" {
        /// Its name.
        name: String = "penstock_split".to_owned(), Text(COOKIE_NAME),
            by check(crate::headers::is_token);
        /// How long browsers keep it.
        max_age: Option<Duration> = None, Age, default "until the browser ends";
    }
}

section! {
    /// Copies of a share of a route's requests for another back end, whose responses are dropped.
    /// A copy has the field `X-Mirror: 1`. It never delays the request, and its failure is only
    /// counted. Requests of all methods are copied, also those that change something.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mirror
    in "sites.routes.mirror", "mirror = { ... } in [[sites.routes]]", "" {
        /// Application that gets the copies.
        app: Option<String> = None, Text("the name of an [apps.NAME] table"), default "no app",
            example r#""hello""#, by hand;
        /// Upstream that gets the copies.
        upstream: Option<String> = None, Text(UPSTREAM_NAME), default "no upstream",
            example r#""legacy""#, only "a mirror without `app`", by hand;
        /// Share of the requests that are copied.
        share: Share = Share::ALL, Fraction;
        /// Longest body that is copied; requests with a longer one are not mirrored.
        max_body_size: u64 = 1 << 20, Size(0);
        /// Copies in progress; above it requests are not mirrored.
        max_active: u32 = 64, Number(1, 100_000);
        /// How long a copy may take, its response included.
        timeout: Duration = Duration::from_secs(10), Time(1);
    }
}
