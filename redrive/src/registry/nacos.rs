//! Nacos as the registry: each node is an ephemeral instance of one service.
//!
//! *State.* The service is called after the database (`redrive-3f0c…`), so that nodes of different databases do not meet. An instance
//! has its node's number in its metadata, and a port made of it, since Nacos knows instances by address and port; nothing listens there.
//! What a node handles is not published: it is in the node table, and Nacos takes only a kilobyte of metadata.
//!
//! *Invariants.* One client, with one connection, for as long as the engine lives. Views are asked of the server, never of the
//! client's memory, which knows no age. What is pushed only says that it is time to ask.
//!
//! *Failure.* An instance lives as long as its connection: of a process that dies it is gone in seconds. When the server is back
//! the client registers again by itself, but it waits longer after each try that failed, up to about a minute; `keep_view_for`
//! should outlast that for the outages that are to go unnoticed.

mod login;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nacos_sdk::api::error::Error::ErrResponse as Refused;
use nacos_sdk::api::naming::{
    NamingChangeEvent, NamingEventListener, NamingService, NamingServiceBuilder, ServiceInstance,
};
use nacos_sdk::api::props::ClientProps;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, OnceCell};

use crate::error::{Error, Result};
use crate::task::NodeNumber;

use super::{Answer, Member, NacosConfig, Registry, Trouble};

use login::Login;

/// See the [module](super): for [`Builder::registry`](crate::Builder::registry), where it does not come from settings.
pub struct Nacos {
    config: NacosConfig,
    login: Option<Arc<Login>>,
    client: OnceCell<NamingService>,
    joined: Mutex<Option<Joined>>,
    news: Arc<News>,
    /// The client wants a directory to remember things in.
    memory: PathBuf,
}

/// As what we are registered, or may be: whoever has given up waiting for it does not know.
#[derive(Clone)]
struct Joined {
    service: String,
    instance: ServiceInstance,
}

/// Hears what is pushed.
#[derive(Default)]
struct News(Notify);

impl NamingEventListener for News {
    fn event(&self, _: Arc<NamingChangeEvent>) {
        self.0.notify_one();
    }
}

/// In the metadata of an instance: the node's number, and its name for people.
const NUMBER: &str = "number";
const NAME: &str = "name";

impl Nacos {
    /// With these settings. It connects when the engine starts.
    pub fn new(config: NacosConfig) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        config.problems().into_result()?;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let memory = std::env::temp_dir().join(format!("redrive-nacos-{}-{number}", std::process::id()));
        let login = Login::of(&config).map_err(|e| Error::invalid("registry.nacos", e.to_string()))?.map(Arc::new);
        Ok(Self { config, login, client: OnceCell::new(), joined: Mutex::default(), news: Arc::default(), memory })
    }

    /// The client: made once. Even when it is dropped it goes on connecting and registering for as long as it has something
    /// registered, so another one beside it would only be in its way.
    async fn client(&self) -> Result<&NamingService, Trouble> {
        let make = || async {
            let mut builder = NamingServiceBuilder::new(self.properties());
            if let Some(login) = &self.login {
                builder = builder.with_auth_plugin(login.clone());
            }
            // In a task of its own, because it panics at some answers.
            Ok(tokio::spawn(builder.build()).await??)
        };
        self.client.get_or_try_init(make).await
    }

    fn properties(&self) -> ClientProps {
        ClientProps::new()
            .env_first(false) // our settings say it; it has variables of its own, which would win
            .server_addr(self.config.servers.join(","))
            .namespace(&*self.config.namespace)
            .app_name("redrive")
            .naming_push_empty_protection(false) // that all others are gone is news, too
            .cache_dir(&self.memory) // not the home directory
            // With this it starts when the server is down, and goes on trying; otherwise every try to make a client leaves some
            // of its tasks behind. There is nothing to load: the directory is new.
            .naming_load_cache_at_start(true)
    }

    fn group(&self) -> Option<String> {
        Some(self.config.group.clone())
    }

    fn joined(&self) -> Option<Joined> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_joined(&self, joined: Option<Joined>) {
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = joined;
    }

    async fn register(&self, member: &Member) -> Result<(), Trouble> {
        let client = self.client().await?;
        let service = format!("{}-{}", self.config.service, member.database);
        let instance = instance(member, self.ip().await);
        // Before the new one: the client registers again, after a lost connection, what it has registered last; and
        // forgets that when anything of the service is taken away.
        if let Some(Joined { service, instance: old }) = self.joined().filter(|j| j.instance.port != instance.port) {
            client.deregister_instance(service, self.group(), old).await?;
        }
        self.set_joined(Some(Joined { service: service.clone(), instance: instance.clone() }));
        client.register_instance(service.clone(), self.group(), instance).await?;
        client.subscribe(service, self.group(), Vec::new(), self.news.clone()).await?;
        Ok(())
    }

    /// Takes away all that the client would otherwise keep up for ever, also when it is dropped.
    async fn withdraw(&self) -> Result<(), Trouble> {
        let Some(Joined { service, instance }) = self.joined() else { return Ok(()) };
        let client = self.client().await?;
        client.deregister_instance(service.clone(), self.group(), instance).await?;
        self.set_joined(None);
        client.unsubscribe(service, self.group(), Vec::new(), self.news.clone()).await?;
        tokio::fs::remove_dir_all(&self.memory).await.ok(); // what is left of it is in the way of nobody
        Ok(())
    }

    async fn listed(&self) -> Result<Vec<NodeNumber>, Trouble> {
        let Some(Joined { service, .. }) = self.joined() else { return Ok(Vec::new()) };
        // `false`: of the server, not of what was pushed last.
        let all = self.client().await?.get_all_instances(service, self.group(), Vec::new(), false).await;
        if let (Err(Refused(..)), Some(login)) = (&all, &self.login) {
            login.renew(&self.config.servers).await;
        }
        Ok(all?.iter().filter_map(number).collect())
    }

    /// The address by which this machine reaches the server. Connecting a UDP socket sends nothing.
    async fn ip(&self) -> IpAddr {
        if let Some(ip) = self.config.ip {
            return ip;
        }
        for any in ["0.0.0.0:0", "[::]:0"] {
            if let (Ok(socket), Some(server)) = (UdpSocket::bind(any).await, self.config.servers.first())
                && socket.connect(server).await.is_ok()
                && let Ok(local) = socket.local_addr()
            {
                return local.ip();
            }
        }
        Ipv4Addr::LOCALHOST.into()
    }
}

impl Registry for Nacos {
    fn join<'a>(&'a self, member: &'a Member) -> Answer<'a, ()> {
        Box::pin(self.register(member))
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(self.withdraw())
    }

    fn view(&self) -> Answer<'_, Vec<NodeNumber>> {
        Box::pin(self.listed())
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.news.0.notified())
    }
}

impl fmt::Debug for Nacos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nacos").field("config", &self.config).finish_non_exhaustive()
    }
}

fn instance(member: &Member, ip: IpAddr) -> ServiceInstance {
    let metadata = HashMap::from([
        (NUMBER.to_owned(), member.number.to_string()),
        (NAME.to_owned(), member.name.clone()), // at most 255 bytes, of the 1,024 that Nacos takes
    ]);
    ServiceInstance { ip: ip.to_string(), port: port(member.number), metadata, ..ServiceInstance::default() }
}

/// A port for a node: no other of the next 65,535 has it.
fn port(number: NodeNumber) -> i32 {
    i32::try_from(number.0.rem_euclid(65_535)).unwrap_or_default() + 1
}

/// The number of a node that is there: a server that has lost many instances at once may list those that it believes to be
/// gone, too, and people can switch one off.
fn number(instance: &ServiceInstance) -> Option<NodeNumber> {
    let is_there = instance.healthy && instance.enabled;
    let number = instance.metadata.get(NUMBER).filter(|_| is_there)?;
    number.parse().ok().map(NodeNumber)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: i64) -> Member {
        Member { database: "3f".into(), number: NodeNumber(number), name: "节点 a".into() }
    }

    #[test]
    fn an_instance_says_which_node_it_is() {
        for n in [1, 65_534, 65_535, 65_536, i64::MAX] {
            let instance = instance(&member(n), Ipv4Addr::LOCALHOST.into());
            assert_eq!(number(&instance), Some(NodeNumber(n)));
            assert!((1..=65_535).contains(&instance.port), "{}", instance.port);
        }
        let ports: std::collections::BTreeSet<i32> = (100..65_635).map(|n| port(NodeNumber(n))).collect();
        assert_eq!(ports.len(), 65_535);
    }

    #[test]
    fn who_is_ill_or_switched_off_or_somebody_else_is_not_there() {
        let good = instance(&member(7), Ipv4Addr::LOCALHOST.into());
        let ill = ServiceInstance { healthy: false, ..good.clone() };
        let off = ServiceInstance { enabled: false, ..good.clone() };
        let other = ServiceInstance { metadata: HashMap::new(), ..good };
        assert_eq!([ill, off, other].iter().find_map(number), None);
    }
}
