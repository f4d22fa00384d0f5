//! Which addresses may be called: those that everybody can reach. Whoever can enqueue a task could otherwise make this server
//! call what only it can reach: a cloud's metadata service, a database's admin page, itself.
//!
//! *State.* None but the settings: networks that are allowed, and whether private ones are (of a target that says so). Names are
//! resolved by a [`Resolver`], which keeps answers for seconds.
//!
//! *Invariants.* What is checked is what is connected to: whatever addresses a name has, from a lookup or kept from an earlier
//! one, are checked here, and those that passed are handed to the client, which has no other resolver and no proxy. Addresses that stand in a URL, in whatever spelling
//! (`2130706433`, `0x7f.1`, `[::ffff:127.0.0.1]`), are checked after the URL parser has made numbers of them. Every redirect
//! is checked like the first address. An IPv6 address that carries an IPv4 one is judged by that. Connections are kept and
//! used again by clients that share one guard only, so one that a target may have is never used for others.
//!
//! *Failure.* What is not known to be public is refused. Some of a name's addresses being refused leaves the others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use redrive::Network;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Host;

use super::resolve::Resolver;

/// Says which addresses may be called.
#[derive(Clone, Debug)]
pub struct Guard {
    allow: Arc<[Network]>,
    allow_private: bool,
    resolver: Resolver,
}

/// An address that must not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is at {address}, which is {why}; it is not called unless the settings allow it")]
pub struct Refused {
    host: String,
    address: IpAddr,
    why: Why,
}

/// What sort of address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Private,
    Loopback,
    LinkLocal,
    Unspecified,
    Multicast,
    Documentation,
    Cloud,
    Reserved,
}

/// A name that has no addresses now.
#[derive(Debug, thiserror::Error)]
#[error("{host} cannot be resolved: {why}")]
pub(super) struct Unresolved {
    host: String,
    why: String,
}

impl Guard {
    /// Only public addresses, and these networks.
    pub fn new(allow: &[Network]) -> Self {
        Self { allow: allow.into(), allow_private: false, resolver: Resolver::system() }
    }

    /// Private and loopback addresses, too. Link-local ones are still refused: clouds have their metadata there.
    pub fn allow_private(mut self) -> Self {
        self.allow_private = true;
        self
    }

    /// Whether the address in this URL may be called, if there is one in it; a name is looked at when it is resolved.
    pub fn check_url(&self, url: &Url) -> Result<(), Refused> {
        let address: IpAddr = match url.host() {
            Some(Host::Ipv4(ip)) => ip.into(),
            Some(Host::Ipv6(ip)) => ip.into(),
            Some(Host::Domain(_)) | None => return Ok(()),
        };
        self.check(address, url.host_str().unwrap_or_default())
    }

    /// Whether this address, at which a host is, may be called.
    pub fn check(&self, address: IpAddr, host: &str) -> Result<(), Refused> {
        let ip = carried(address);
        let allowed = |why: Why| {
            let private = self.allow_private && matches!(why, Why::Private | Why::Loopback);
            private || self.allow.iter().any(|network| network.contains(ip) || network.contains(address))
        };
        match not_public(ip) {
            Some(why) if !allowed(why) => Err(Refused { host: host.to_owned(), address, why }),
            _ => Ok(()),
        }
    }

    /// Those of a host's addresses that may be called, or why none may.
    fn allowed(&self, host: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, LookupError> {
        let (mut allowed, mut refused) = (Vec::new(), None);
        for address in found {
            match self.check(address.ip(), host) {
                Ok(()) => allowed.push(address),
                Err(e) => refused = Some(e),
            }
        }
        match refused {
            Some(refused) if allowed.is_empty() => Err(refused.into()),
            None if allowed.is_empty() => {
                Err(Unresolved { host: host.to_owned(), why: "it has no address".into() }.into())
            }
            _ => Ok(allowed),
        }
    }
}

type LookupError = Box<dyn std::error::Error + Send + Sync>;

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let host = name.as_str();
            let found = guard.resolver.find(host).await;
            let found = found.map_err(|why| Unresolved { host: host.to_owned(), why })?;
            Ok(Box::new(guard.allowed(host, found.into_iter())?.into_iter()) as Addrs)
        })
    }
}

/// The address that an IPv6 one carries, if it is of a sort that does (mapped, NAT64, 6to4), else itself.
fn carried(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => ip,
    }
}

/// Why an address is not one that everybody can reach.
fn not_public(ip: IpAddr) -> Option<Why> {
    match ip {
        IpAddr::V4(ip) => not_public_v4(ip),
        IpAddr::V6(ip) => not_public_v6(ip),
    }
}

/// By IANA's registry of special addresses, and one more.
fn not_public_v4(ip: Ipv4Addr) -> Option<Why> {
    match ip.octets() {
        [0, 0, 0, 0] => Some(Why::Unspecified),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Some(Why::Private),
        [127, ..] => Some(Why::Loopback),
        [169, 254, ..] => Some(Why::LinkLocal),
        // Azure gives every machine its host there; no registry knows of it.
        [168, 63, 129, 16] => Some(Why::Cloud),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Some(Why::Documentation),
        [224..=239, ..] => Some(Why::Multicast),
        // "This network", protocol assignments, 6to4 relays, benchmarks, future use and broadcast.
        [0 | 240..=255, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [198, 18 | 19, ..] => Some(Why::Reserved),
        _ => None,
    }
}

/// Only 2000::/3 is given out to the public, and not all of it.
fn not_public_v6(ip: Ipv6Addr) -> Option<Why> {
    match ip.segments() {
        _ if ip == Ipv6Addr::UNSPECIFIED => Some(Why::Unspecified),
        _ if ip == Ipv6Addr::LOCALHOST => Some(Why::Loopback),
        [0xfc00..=0xfdff, ..] => Some(Why::Private),
        [0xfe80..=0xfebf, ..] => Some(Why::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Why::Multicast),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Why::Documentation),
        // Protocol assignments: Teredo, which hides an IPv4 address, and others.
        [0x2001, 0..=0x1ff, ..] => Some(Why::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Why::Reserved),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Private => "private",
            Self::Loopback => "this machine",
            Self::LinkLocal => "link-local",
            Self::Unspecified => "no address",
            Self::Multicast => "multicast",
            Self::Documentation => "for documentation only",
            Self::Cloud => "the cloud's own",
            Self::Reserved => "reserved",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(guard: &Guard, url: &str) -> bool {
        guard.check_url(&Url::parse(url).unwrap()).is_err()
    }

    #[test]
    fn addresses_that_not_everybody_can_reach_are_refused() {
        let guard = Guard::new(&[]);
        for ip in "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254 \
             168.63.129.16 ::ffff:168.63.129.16 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 \
             198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 \
             ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 ::8.8.8.8 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe \
             64:ff9b:1::1 2002:7f00:1::1 2002:a00:1:: 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 \
             2001:db8::1 3fff::1 fc00::1 fdff::1 fe80::1 fec0::1 ff02::1 100::1 5f00::1 4000::1"
            .split(' ')
        {
            assert!(guard.check(ip.parse().unwrap(), "h").is_err(), "{ip}");
        }
        for ip in "1.1.1.1 8.8.8.8 168.63.129.15 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 198.20.0.1 \
             223.255.255.255 2606:4700:4700::1111 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::808:808 \
             2002:808:808::1 2001:4860:4860::8888"
            .split(' ')
        {
            assert!(guard.check(ip.parse().unwrap(), "h").is_ok(), "{ip}");
        }
    }

    #[test]
    fn an_address_is_known_in_every_spelling() {
        let guard = Guard::new(&[]);
        for url in "http://127.0.0.1/ http://2130706433/ http://0x7f000001/ http://0177.0.0.1/ http://0x7f.1/ \
             http://127.1/ http://017700000001/ http://[::1]/ http://[::ffff:127.0.0.1]/ \
             http://[0:0:0:0:0:ffff:7f00:1]/ http://127.0.0.1./ http://%31%32%37.0.0.1/ http://１２７.０.０.１/ \
             http://0/ http://[::]/ http://169.254.169.254/latest/meta-data http://2852039166/"
            .split(' ')
        {
            assert!(refused(&guard, url), "{url}");
        }
        assert!(!refused(&guard, "http://8.8.8.8/") && !refused(&guard, "http://134744072/"));
    }

    #[test]
    fn what_is_allowed_is_allowed_and_no_more() {
        let ip = |ip: &str| -> IpAddr { ip.parse().unwrap() };
        let some = Guard::new(&["10.1.0.0/16".parse().unwrap(), "169.254.169.254".parse().unwrap()]);
        for (address, allowed) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("127.0.0.1", false),
            ("169.254.169.254", true),
            ("169.254.169.253", false),
        ] {
            assert_eq!(some.check(ip(address), "h").is_ok(), allowed, "{address}");
        }
        let private = Guard::new(&[]).allow_private();
        for (address, allowed) in [
            ("10.2.0.1", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("fd00::1", true),
            ("100.64.0.1", true),
            ("169.254.169.254", false),
            ("168.63.129.16", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("::ffff:0:0", false),
        ] {
            assert_eq!(private.check(ip(address), "h").is_ok(), allowed, "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let name = || "localhost".parse::<Name>().unwrap();
        let refused = Guard::new(&[]).resolve(name()).await.err().unwrap();
        assert!(refused.downcast_ref::<Refused>().is_some(), "{refused}");
        assert!(refused.to_string().contains("localhost is at") && refused.to_string().contains("this machine"));
        let allowed: Vec<_> = Guard::new(&[]).allow_private().resolve(name()).await.ok().unwrap().collect();
        assert!(!allowed.is_empty() && allowed.iter().all(|address| address.ip().is_loopback()));
        let unknown =
            Guard::new(&[]).resolve(format!("{}.invalid", "a".repeat(64)).parse().unwrap()).await.err().unwrap();
        assert!(unknown.downcast_ref::<Unresolved>().is_some(), "{unknown}");
    }

    #[test]
    fn of_several_addresses_those_that_may_be_called_are_left() {
        let at = |ips: &[&str]| {
            let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect::<Vec<_>>();
            Guard::new(&[]).allowed("h", found.into_iter()).map(|left| left.len())
        };
        assert_eq!(at(&["8.8.8.8", "10.0.0.1", "1.1.1.1"]).unwrap(), 2);
        assert!(at(&["10.0.0.1", "::1"]).is_err() && at(&[]).is_err());
    }
}
