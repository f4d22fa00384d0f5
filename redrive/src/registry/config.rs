//! Settings of registries. Those of Nacos can be read by a program that is built without it, which then says so.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;
use crate::error::{Problems, Result};
use crate::secret::Secret;

/// How nodes find each other: `[registry]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RegistryConfig {
    /// Who keeps the list of nodes. Default: `database`.
    pub kind: RegistryKind,
    /// How long a node goes on with its last view when it can get no new one; then it looks for tasks no more until it can.
    /// With the database it seldom matters, for a node that cannot reach it loses its right to work sooner. Default: 1 min.
    #[serde(with = "duration")]
    pub keep_view_for: Duration,
    /// Where Nacos is, if it is to keep the list. Default: see there.
    pub nacos: NacosConfig,
}

/// Who keeps the list of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegistryKind {
    /// The node table of the database.
    #[default]
    Database,
    /// Nacos; needs the cargo feature `nacos`.
    Nacos,
}

/// Where Nacos is, and as what nodes are registered there: `[registry.nacos]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NacosConfig {
    /// The servers, `host:port` each; their gRPC port is by 1,000 greater, as Nacos has it. Default: `127.0.0.1:8848`.
    pub servers: Vec<String>,
    /// The namespace's id. Default: `public`.
    pub namespace: String,
    /// The group. Default: `DEFAULT_GROUP`.
    pub group: String,
    /// What the service's name begins with; the name of the database follows, so that nodes of two databases are never
    /// taken for each other. Default: `redrive`.
    pub service: String,
    /// The address under which this node is listed. Nothing listens there; it is for people. Default: the one by which this
    /// machine reaches the first server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The user to log in as. Default: none, there is no login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Its password. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

/// What a program says that is built without Nacos and asked for it.
pub(super) const WITHOUT_NACOS: &str =
    "is nacos, but this program is built without it: build it with the cargo feature `nacos`, or say \"database\"";

impl Default for RegistryConfig {
    fn default() -> Self {
        let keep_view_for = Duration::from_secs(60);
        Self { kind: RegistryKind::default(), keep_view_for, nacos: NacosConfig::default() }
    }
}

impl Default for NacosConfig {
    fn default() -> Self {
        Self {
            servers: vec!["127.0.0.1:8848".into()],
            namespace: "public".into(),
            group: "DEFAULT_GROUP".into(),
            service: "redrive".into(),
            ip: None,
            username: None,
            password: None,
        }
    }
}

impl RegistryConfig {
    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        self.problems().into_result()
    }

    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let asked = self.kind == RegistryKind::Nacos;
        problems.require(!asked || cfg!(feature = "nacos"), "kind", || WITHOUT_NACOS.into());
        duration::check(self.keep_view_for, "keep_view_for", &mut problems);
        problems.nest("nacos", self.nacos.problems());
        problems
    }
}

impl NacosConfig {
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let p = &mut problems;
        p.require(!self.servers.is_empty() && self.servers.iter().all(|s| is_server(s)), "servers", || {
            "must be a list of one or more host:port".into()
        });
        for (field, name) in [("namespace", &self.namespace), ("group", &self.group), ("service", &self.service)] {
            p.require(is_name(name), field, || {
                format!("must be from 1 to {LONGEST_NAME} letters, digits and any of .:_-, is {name:?}")
            });
        }
        p.require(self.username.is_some() == self.password.is_some(), "username", || {
            "a user and a password are given together".into()
        });
        problems
    }
}

/// Nacos takes somewhat more for most of them; the service's also has the database's name behind it.
const LONGEST_NAME: usize = 100;

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".:_-".contains(c);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed)
}

/// `host:port`, without scheme or path, of which the client of Nacos would make something else.
fn is_server(text: &str) -> bool {
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0 && port <= u16::MAX - 1_000);
    text.rsplit_once(':').is_some_and(|(host, p)| !host.is_empty() && !host.contains(['/', ',', ' ', '@']) && port(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_said() {
        let wrong = NacosConfig {
            servers: vec!["http://nacos:8848".into()],
            namespace: String::new(),
            service: "two words".into(),
            password: Some("p".into()),
            ..NacosConfig::default()
        };
        let problems = wrong.problems();
        let fields: Vec<&str> = problems.iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["servers", "namespace", "service", "username"]);
        assert!(NacosConfig::default().problems().into_result().is_ok());
    }

    #[test]
    fn a_server_is_a_host_and_a_port_with_room_for_grpc() {
        for good in ["127.0.0.1:8848", "nacos-0.nacos:8848", "[::1]:64535"] {
            assert!(is_server(good), "{good}");
        }
        for bad in ["nacos", ":8848", "nacos:0", "nacos:64536", "nacos:x", "http://nacos:8848", "a:1,b:2"] {
            assert!(!is_server(bad), "{bad}");
        }
    }
}
