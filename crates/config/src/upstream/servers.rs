//! The `servers` of an upstream: texts, or tables with what is special about one.
//!
//! Called by `upstream`. What must stay true: no address stands twice, and not every server is a
//! backup. Whether a name resolves is found out when it is used.

use crate::address;
use crate::error::Problem;
use crate::model::UpstreamServer;
use crate::place::At;
use crate::section::{Item, Section};

/// Reads the list; where others join (`joined`) there may be none.
pub(super) fn read(table: &Section<'_>, joined: bool) -> Vec<UpstreamServer> {
    if !joined {
        if !table.has("servers") {
            table.missing("servers");
        }
        table.check_filled("servers");
    }
    let mut servers: Vec<At<UpstreamServer>> = Vec::new();
    for item in table.texts_or_tables("servers").unwrap_or_default() {
        let Some(server) = read_one(table, &item) else {
            continue;
        };
        let address = &server.value.address;
        if let Some(first) = servers.iter().find(|s| s.value.address == *address) {
            let (address, line) = (address.clone(), table.found.line(first.at));
            table.add(server.at, Problem::ServerTwice { address, line });
        } else {
            servers.push(server);
        }
    }
    if !joined && !servers.is_empty() && servers.iter().all(|server| server.value.backup) {
        table.add(table.key_at(&["servers"]), Problem::OnlyBackups);
    }
    servers.into_iter().map(|server| server.value).collect()
}

fn read_one(table: &Section<'_>, item: &Item<'_>) -> Option<At<UpstreamServer>> {
    let found = table.found;
    let inner = match item {
        Item::Text(text) => {
            let address = address::server(text.value, found.base());
            if address.is_none() {
                table.bad("servers", text);
            }
            return address.map(|address| At::new(UpstreamServer::new(address), text.at));
        }
        Item::Table(inner) => inner,
    };
    let address = inner.parsed("address", |text| address::server(text, found.base()));
    if !inner.has("address") {
        inner.missing("address");
    }
    let (mut weight, mut backup) = (1, false);
    inner.count("weight", &mut weight);
    inner.flag("backup", &mut backup);
    let max_active = inner.count_said("max_active");
    address.map(|address| {
        let server = UpstreamServer {
            weight,
            max_active,
            backup,
            ..UpstreamServer::new(address.value)
        };
        At::new(server, address.at)
    })
}
