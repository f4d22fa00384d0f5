//! Where HTTP tasks go: what holds for all of them (`[http]`), and named targets (`[targets.billing]`) with the secrets that
//! are added when a request is sent and stored nowhere.
//!
//! The server delivers; this file only says what may be said. What is secret is a [`Secret`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::engine::{MethodOptions, Rate};
use crate::error::{Error, Problems, Result};
use crate::gate::GateConfig;
use crate::secret::Secret;

use super::{PolicyPatch, join, read};

/// What holds for all HTTP tasks: `[http]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Networks that may be called although they are not public: `["10.1.0.0/16", "fd00::/8"]`. Default: none.
    pub allow: Vec<Network>,
    /// How many redirects are followed. Default: 3.
    pub max_redirects: u32,
    /// The circuit breaker of each host, and of each target that has none of its own: see [`gate`](crate::gate). Default: see there.
    pub gate: GateConfig,
}

/// More than this is a loop.
const MOST_REDIRECTS: u32 = 20;

impl Default for HttpSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), max_redirects: 3, gate: GateConfig::default() }
    }
}

impl HttpSettings {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.require(self.max_redirects <= MOST_REDIRECTS, "max_redirects", || {
            format!("must be at most {MOST_REDIRECTS}, is {}", self.max_redirects)
        });
        problems.nest("gate", self.gate.problems());
        problems
    }
}

/// A service that HTTP tasks name: `[targets.billing]`. Policy fields stand beside the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
#[non_exhaustive]
pub struct TargetSettings {
    /// Policy fields for its tasks that do not say otherwise. Default: none.
    #[serde(flatten)]
    pub policy: PolicyPatch,
    /// What the paths of its requests are appended to: `https://billing.example.org/api`. Default: none, it must be given.
    pub base_url: String,
    /// Headers that are added to every request; they are secret. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
    /// What requests are signed with, after Standard Webhooks: `whsec_` and base64. Several, with spaces between them, sign
    /// all at once, so that a receiver can go from one to the next. Default: none, they are not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<Secret>,
    /// How many of its requests are under way at once on each node: one that hangs takes no more. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// How many of its tasks start in a time, on all nodes together: `{ tasks = 100, per = "1s" }`. Default: any number.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "read::write_rate")]
    pub rate: Option<Rate>,
    /// The circuit breaker that holds its tasks back while it is down: see [`gate`](crate::gate). Default: that of `[http]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateConfig>,
    /// Whether it may be at a private or loopback address. Default: no.
    pub allow_private: bool,
}

/// The names of a target's fields beside its policy's.
pub(super) const OF_TARGET: &[&str] =
    &["base_url", "headers", "signing_secret", "concurrency", "rate", "gate", "allow_private"];

const LONGEST_NAME: usize = 100;
/// A tenth of what a node has room for, and enough for 5,000 requests a second that take 20 ms each.
const CONCURRENCY: usize = 100;

impl TargetSettings {
    /// The keys in its signing secret; those that are none are left out.
    pub fn signing_keys(&self) -> Vec<Vec<u8>> {
        self.secrets().filter_map(signing_key).collect()
    }

    /// The limits of its tasks.
    pub fn limits(&self) -> MethodOptions {
        let mut options = MethodOptions::default();
        (options.concurrency, options.rate) = (Some(self.concurrency.unwrap_or(CONCURRENCY)), self.rate);
        options.gate.clone_from(&self.gate);
        options
    }

    fn secrets(&self) -> impl Iterator<Item = &str> {
        self.signing_secret.iter().flat_map(|secret| secret.reveal().split_whitespace())
    }

    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        let path = join("targets", name);
        let nameable = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        problems.require((1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(nameable), &path, || {
            format!("a target's name must be from 1 to {LONGEST_NAME} letters, digits, _ and -")
        });
        self.policy.check(&path, problems);
        self.limits().check(&path, problems);
        problems.nest(&path, self.own_problems());
    }

    fn own_problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Err(why) = check_base(&self.base_url) {
            problems.add("base_url", why);
        }
        for (name, value) in &self.headers {
            let ok = is_token(name) && value.reveal().bytes().all(|b| b == b'\t' || (32..127).contains(&b));
            problems
                .require(ok, &join("headers", name), || "is not a header's name and value (which is not shown)".into());
        }
        let secrets = self.secrets().map(signing_key).collect::<Option<Vec<_>>>();
        let ok = self.signing_secret.is_none() || secrets.is_some_and(|secrets| !secrets.is_empty());
        problems.require(ok, "signing_secret", || {
            "must be secrets of Standard Webhooks, whsec_ and base64, with spaces between them".into()
        });
        problems
    }
}

/// Whether this can be followed by a path. The server parses it; here is what people get wrong.
fn check_base(url: &str) -> Result<(), &'static str> {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return Err("must be a whole address, with https or http");
    };
    let host = rest.split('/').next().unwrap_or_default();
    match () {
        () if host.is_empty() => Err("has no host"),
        () if host.contains('@') => Err("must have no user and password; give an Authorization header under `headers`"),
        () if rest.contains(['?', '#']) => Err("must have no ? and no #, since paths are appended to it"),
        () if rest.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') => Err("has a space in it"),
        () => Ok(()),
    }
}

fn is_token(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(allowed)
}

fn signing_key(secret: &str) -> Option<Vec<u8>> {
    let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_")?).ok()?;
    (!key.is_empty()).then_some(key)
}

impl TryFrom<Map<String, Value>> for TargetSettings {
    type Error = Error;

    fn try_from(fields: Map<String, Value>) -> Result<Self> {
        let (own, policy): (Map<_, _>, Map<_, _>) =
            fields.into_iter().partition(|(name, _)| OF_TARGET.contains(&name.as_str()));
        let own: OwnForm = serde_json::from_value(own.into())
            .map_err(|e| Error::invalid("target", super::sources::scrubbed(&e.to_string())))?;
        let OwnForm { base_url, headers, signing_secret, concurrency, rate, gate, allow_private } = own;
        let (policy, rate) = (policy.try_into()?, rate.map(Into::into));
        Ok(Self { policy, base_url, headers, signing_secret, concurrency, rate, gate, allow_private })
    }
}

/// What a target has beside its policy, as it is written.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnForm {
    base_url: String,
    headers: BTreeMap<String, Secret>,
    signing_secret: Option<Secret>,
    concurrency: Option<usize>,
    rate: Option<read::RateForm>,
    gate: Option<GateConfig>,
    allow_private: bool,
}

/// A range of addresses: `10.1.0.0/16`, `fd00::/8`, `192.0.2.7` (that one alone).
///
/// ```
/// use redrive::Network;
///
/// let office: Network = "10.1.0.0/16".parse()?;
/// assert!(office.contains("10.1.2.3".parse().unwrap()));
/// assert!(!office.contains("10.2.0.1".parse().unwrap()));
/// assert!("10.1.0.0/33".parse::<Network>().is_err());
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// Whether this address is in it. An IPv4 address is in no IPv6 network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(ours), IpAddr::V4(ip)) => same(ours.to_bits().into(), ip.to_bits().into(), 32, self.prefix),
            (IpAddr::V6(ours), IpAddr::V6(ip)) => same(ours.to_bits(), ip.to_bits(), 128, self.prefix),
            _ => false,
        }
    }
}

/// Whether the first `prefix` of so many bits are the same.
fn same(a: u128, b: u128, bits: u32, prefix: u32) -> bool {
    (a ^ b).checked_shr(bits - prefix).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("network", format!("{text:?} is not a network such as 10.1.0.0/16 or fd00::/8"));
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), str::parse).map_err(|_| wrong())?;
        if prefix > bits { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_begins_like_them() {
        let holds = |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        for (network, ip) in
            [("0.0.0.0/0", "8.8.8.8"), ("10.0.0.0/8", "10.255.0.1"), ("10.9.9.9/8", "10.1.1.1"), ("1.2.3.4", "1.2.3.4")]
        {
            assert!(holds(network, ip), "{network} {ip}");
        }
        assert!(holds("::/0", "::1") && holds("fd00::/8", "fdff::1") && holds("::1/128", "::1"));
        for (network, ip) in
            [("10.0.0.0/8", "11.0.0.1"), ("1.2.3.4", "1.2.3.5"), ("::/0", "1.2.3.4"), ("fd00::/8", "fe80::1")]
        {
            assert!(!holds(network, ip), "{network} {ip}");
        }
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0/8", "host/8", "10.0.0.0/"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_that_is_wrong_with_a_target_is_said_without_its_secrets() {
        let target = TargetSettings {
            base_url: "https://me:hunter2@host".into(),
            headers: [("Auth orization".to_owned(), "hunter2".into()), ("X-Key".to_owned(), "hunter2\n".into())].into(),
            signing_secret: Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw hunter2".into()),
            concurrency: Some(0),
            ..TargetSettings::default()
        };
        let mut problems = Problems::default();
        target.check("a b", &mut problems);
        let said = problems.to_string();
        for field in
            ["targets.\"a b\"", "base_url", "headers.\"Auth orization\"", "headers.X-Key", "signing_secret", "limit"]
        {
            assert!(said.contains(field), "{field} in {said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }

    #[test]
    fn a_base_is_an_address_that_a_path_can_follow() {
        for good in ["https://h", "http://h:8080/", "https://h/api/v1", "http://[::1]:80"] {
            assert_eq!(check_base(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "h/api",
            "ftp://h",
            "https://",
            "https:///x",
            "https://u@h",
            "https://h?x",
            "https://h/#f",
            "https://h x",
        ] {
            assert!(check_base(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn several_secrets_are_several_keys() {
        let target =
            TargetSettings { signing_secret: Some("whsec_YQ==  whsec_Yg==".into()), ..TargetSettings::default() };
        assert_eq!(target.signing_keys(), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(target.limits().concurrency, Some(100), "built in");
    }
}
