//! Rules with fixed verdicts, under `all` and `any`.

use penstock_exchange::Body;
use penstock_http::Status;

use super::*;
use crate::testing::{request, run};

/// A rule that always decides alike.
#[derive(Debug, Clone)]
struct Fixed {
    verdict: &'static str,
    is_slow: bool,
    own: Vec<String>,
}

fn fixed(verdict: &'static str) -> Fixed {
    Fixed {
        verdict,
        is_slow: false,
        own: Vec::new(),
    }
}

impl Fixed {
    fn slow(self) -> Self {
        Self {
            is_slow: true,
            ..self
        }
    }

    fn with_field(self, name: &str) -> Self {
        Self {
            own: vec![name.to_owned()],
            ..self
        }
    }

    fn verdict(&self) -> Verdict {
        let fault = |kind| Fault::new(kind, self.verdict);
        let challenge = |scheme| fault(FaultKind::Unauthorized).with_field(CHALLENGE, scheme);
        Err(match self.verdict {
            "admit" => {
                let own = self.own.iter();
                return Ok(Admission {
                    is_authenticated: true,
                    user: Some("anna".into()),
                    fields: own.map(|name| (name.clone(), b"ours".to_vec())).collect(),
                });
            }
            "basic" => challenge("Basic realm=\"x\"").into(),
            "bearer" => challenge("Bearer").into(),
            "forbidden" => fault(FaultKind::Forbidden).into(),
            "unavailable" => fault(FaultKind::Unavailable).into(),
            "too many" => fault(FaultKind::TooManyRequests).into(),
            "left" => fault(FaultKind::ClientDisconnected).into(),
            "login" => Refusal::Response(Box::new(Response::new(Status::FOUND, Body::Empty))),
            other => panic!("no verdict: {other}"),
        })
    }
}

impl AdmissionRule for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn decide(&self, _: &Request) -> Decision {
        let verdict = self.verdict();
        match self.is_slow {
            true => Decision::Pending(Box::pin(async move { verdict })),
            false => Decision::Ready(verdict),
        }
    }

    fn own_fields(&self) -> &[String] {
        &self.own
    }
}

/// What becomes of a request: its user, a status, or the fault with its challenges.
fn outcome(satisfy: Satisfy, verdicts: &[&'static str], is_slow: bool) -> String {
    let rule = |verdict: &&'static str| {
        let rule = match is_slow {
            true => fixed(verdict).slow(),
            false => fixed(verdict),
        };
        Arc::new(rule) as Arc<dyn AdmissionRule>
    };
    let handler = AdmissionHandler::new(verdicts.iter().map(rule).collect(), satisfy);
    match run(&handler, request("/", "")) {
        Ok(Reply::Pass(request)) => request.client_state.user().unwrap().to_string(),
        Ok(Reply::Response(response)) => response.status.code().to_string(),
        Ok(Reply::Redirect(_)) => panic!("no redirect"),
        Err(fault) => {
            let fields = fault.fields.unwrap_or_default();
            let values = fields
                .iter()
                .map(|(_, value)| String::from_utf8_lossy(value));
            let values: Vec<_> = values.collect();
            format!("{:?} {} [{}]", fault.kind, fault.cause, values.join(", "))
        }
    }
}

#[test]
fn all_rules_must_admit_or_one_as_the_route_says() {
    use Satisfy::{All, Any};
    let basic = "Basic realm=\"x\"";
    for (satisfy, verdicts, expected) in [
        (All, &["admit", "admit"][..], "anna".to_owned()),
        (
            All,
            &["forbidden", "basic"],
            "Forbidden forbidden []".to_owned(),
        ),
        (
            All,
            &["admit", "basic"],
            format!("Unauthorized basic [{basic}]"),
        ),
        (All, &["admit", "login", "forbidden"], "302".to_owned()),
        (Any, &["forbidden", "admit"], "anna".to_owned()),
        (Any, &["unavailable", "admit", "login"], "anna".to_owned()),
        (
            Any,
            &["forbidden", "basic"],
            format!("Unauthorized forbidden; basic [{basic}]"),
        ),
        (
            Any,
            &["bearer", "basic"],
            format!("Unauthorized bearer; basic [Bearer, {basic}]"),
        ),
        (
            Any,
            &["unavailable", "basic"],
            format!("Unauthorized unavailable; basic [{basic}]"),
        ),
        (
            Any,
            &["forbidden", "unavailable"],
            "Unavailable forbidden; unavailable []".to_owned(),
        ),
        (
            Any,
            &["bearer", "too many"],
            "TooManyRequests bearer; too many []".to_owned(),
        ),
        (
            Any,
            &["forbidden", "forbidden"],
            "Forbidden forbidden; forbidden []".to_owned(),
        ),
        (Any, &["basic", "login"], "302".to_owned()),
        (
            Any,
            &["left", "admit"],
            "ClientDisconnected left []".to_owned(),
        ),
    ] {
        for is_slow in [false, true] {
            let found = outcome(satisfy, verdicts, is_slow);
            assert_eq!(found, expected, "{satisfy:?} {verdicts:?} {is_slow}");
        }
    }
}

#[test]
fn fields_of_rules_are_never_the_clients() {
    let rules = || {
        vec![
            Arc::new(fixed("basic").with_field("X-User")) as Arc<dyn AdmissionRule>,
            Arc::new(fixed("admit").with_field("X-Group").slow()),
            Arc::new(fixed("admit").with_field("X-Other")),
        ]
    };
    let spoofed = "X-User: me\r\nx_group: me\r\nX-Other: me\r\nX-Own: kept\r\n";
    let pass = |rules, satisfy| {
        let handler = AdmissionHandler::new(rules, satisfy);
        let Ok(Reply::Pass(request)) = run(&handler, request("/a?b", spoofed)) else {
            panic!("the request goes on");
        };
        let fields = request.head.fields();
        let mut fields: Vec<String> = fields
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
            .collect();
        fields.sort();
        (fields, request)
    };
    let (fields, _) = pass(rules(), Satisfy::Any);
    assert_eq!(fields, ["Host: a.example", "X-Group: ours", "X-Own: kept"]);
    let (fields, request) = pass(rules().split_off(1), Satisfy::All);
    let expected = [
        "Host: a.example",
        "X-Group: ours",
        "X-Other: ours",
        "X-Own: kept",
        "X-User: me",
    ];
    assert_eq!(fields, expected);
    assert!(request.trusted_headers.covers("x-group"));
    assert_eq!(request.head.target(), "/a?b");
}
