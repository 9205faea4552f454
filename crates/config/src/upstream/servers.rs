//! The `servers` of an upstream: texts, or tables with settings of one server.
//!
//! Called by `upstream`.
//!
//! # Invariants
//! - No address stands twice, and not every server is a backup. Whether a name resolves is found
//!   out when it is used.

use crate::address;
use crate::findings::LocatedValue;
use crate::model::{ServerAddr, UpstreamServer};
use crate::section::{Keys as _, Section, TextOrTable};

/// Reads the list; where others join (`joinable`) there may be none.
pub(super) fn read(table: &Section<'_>, joined: bool) -> Vec<UpstreamServer> {
    if !joined {
        if !table.has("servers") {
            table.report_missing("servers");
        }
        table.check_not_empty("servers");
    }
    let mut servers: Vec<LocatedValue<UpstreamServer>> = Vec::new();
    for item in table.texts_or_tables("servers").unwrap_or_default() {
        let Some(server) = read_one(table, &item) else {
            continue;
        };
        let address = &server.value.address;
        if let Some(first) = servers.iter().find(|s| s.value.address == *address) {
            let place = table.findings.place_suffix(first.offset, server.offset);
            let problem = format!("server {address} is already listed{place}");
            table.report(server.offset, problem);
        } else {
            servers.push(server);
        }
    }
    if !joined && !servers.is_empty() && servers.iter().all(|server| server.value.backup) {
        let problem = "every server is `backup`: at least one must not be";
        table.report_key("servers", problem);
    }
    servers.into_iter().map(|server| server.value).collect()
}

fn read_one(table: &Section<'_>, item: &TextOrTable<'_>) -> Option<LocatedValue<UpstreamServer>> {
    let found = table.findings;
    let inner = match item {
        TextOrTable::Text(text) => {
            let address = address::parse_server_addr(text.value, found.base_dir());
            if address.is_none() {
                table.report_invalid("servers", text);
            }
            return address
                .map(|address| LocatedValue::new(UpstreamServer::new(address), text.offset));
        }
        TextOrTable::Table(inner) => inner,
    };
    let address = inner.parse_text("address", |text| {
        address::parse_server_addr(text, found.base_dir())
    });
    // The address is replaced below; a wrong one was reported.
    let mut server = UpstreamServer::new(ServerAddr::Joined(0));
    server.read_keys(inner);
    address.map(|address| {
        server.address = address.value;
        LocatedValue::new(server, address.offset)
    })
}
