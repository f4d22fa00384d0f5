//! HTTP tasks: real requests to real servers on this machine, by an engine whose clock is moved by hand.

mod service;

use std::time::Duration;

use redrive::store::{ArchiveFilter, DeadFilter};
use redrive::testing::Testing;
use redrive::{CallError, Cause, Engine, IntoTask, PolicyPatch, Settings, Store, Task};
use redrive_server::http::{Answer, HttpCall, HttpDelivery, HttpRequest};
use service::{NOBODY, Service, bytes};

const LOOPBACK: &str = "[http]\nallow = ['127.0.0.1']\n";

/// An engine that delivers under these settings.
struct World {
    engine: Testing,
    delivery: HttpDelivery,
}

impl World {
    async fn new(toml: &str) -> Self {
        let settings = Settings::parse(toml, [].into_iter()).unwrap();
        let delivery = HttpDelivery::new(&settings).unwrap();
        Self { engine: Testing::with(|builder| delivery.clone().install(builder)).await, delivery }
    }

    fn call(&self, request: HttpRequest) -> HttpCall {
        HttpCall::new(&self.delivery, request).unwrap()
    }

    /// Enqueues and runs it once.
    async fn deliver(&self, call: HttpCall) {
        self.engine.enqueue(call).await.unwrap();
        self.engine.run_due().await;
    }

    /// What became of a request after one attempt.
    async fn outcome(&self, request: HttpRequest) -> Became {
        self.outcome_under(request, &[]).await
    }

    async fn outcome_under(&self, request: HttpRequest, policy: &[(&str, &str)]) -> Became {
        let mut patch = PolicyPatch::default();
        for (field, value) in policy {
            patch.set(field, serde_json::from_str::<serde_json::Value>(value).unwrap()).unwrap();
        }
        self.became(self.call(request).policy(patch)).await
    }

    async fn became(&self, call: HttpCall) -> Became {
        let id = self.engine.enqueue(call).await.unwrap().id;
        self.engine.run_due().await;
        if let Some(dead) = self.engine.store().get_dead(id).await.unwrap() {
            return Became::Dead(dead.task);
        }
        match self.engine.store().get(id).await.unwrap() {
            Some(task) => Became::Waiting(task),
            None => Became::Done,
        }
    }
}

#[derive(Debug)]
enum Became {
    Done,
    Waiting(Task),
    Dead(Task),
}

impl Became {
    /// The kind and the message of the error of a task that waits to be tried again.
    fn waiting(&self) -> (&str, &str) {
        let Self::Waiting(task) = self else { panic!("it does not wait: {self:?}") };
        let error = task.last_error.as_ref().unwrap();
        (error.kind.as_str(), &error.message)
    }

    fn dead(&self) -> (&str, &str) {
        let Self::Dead(task) = self else { panic!("it is not dead: {self:?}") };
        let error = task.last_error.as_ref().unwrap();
        (error.kind.as_str(), &error.message)
    }
}

#[tokio::test]
async fn a_status_says_whether_it_is_tried_again() {
    // Without a gate: so many failures in a row would open it.
    let ungated = format!("{LOOPBACK}\ngate = {{ enabled = false }}");
    let (world, service) = (World::new(&ungated).await, Service::start().await);
    for status in [200, 201, 204, 299] {
        let became = world.outcome(HttpRequest::post(service.url(&format!("/status/{status}")))).await;
        assert!(matches!(became, Became::Done), "{status}: {became:?}");
    }
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let became = world.outcome(HttpRequest::post(service.url(&format!("/status/{status}")))).await;
        let (kind, message) = became.waiting();
        assert_eq!(kind, format!("http.{status}"));
        assert!(
            message.starts_with(&status.to_string()) && message.ends_with(&format!("this is {status}")),
            "{message}"
        );
    }
    for status in [300, 304, 400, 401, 403, 404, 409, 410, 422, 501, 505] {
        let became = world.outcome(HttpRequest::post(service.url(&format!("/status/{status}")))).await;
        assert_eq!(became.dead().0, format!("http.{status}"));
    }
}

#[tokio::test]
async fn the_policy_s_lists_win_over_what_a_status_says() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let request = |status: u16| HttpRequest::post(service.url(&format!("/status/{status}")));
    assert_eq!(world.outcome_under(request(404), &[("retry_for", r#"["http.404"]"#)]).await.waiting().0, "http.404");
    assert_eq!(world.outcome_under(request(503), &[("no_retry_for", r#"["http"]"#)]).await.dead().0, "http.503");
}

#[tokio::test]
async fn it_is_delivered_until_it_succeeds() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let request = HttpRequest::post(service.url("/then/503,500,200")).with_body("{\"order\": 7}");
    let call =
        world.call(request).key("order-7").business("order", "7").into_new_task(&world.engine.defaults()).unwrap();
    let id = world
        .engine
        .enqueue(call.traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
        .await
        .unwrap()
        .id;
    world.engine.drain().await;
    assert!(world.engine.waiting().await.is_empty());

    let seen = service.seen();
    let of = |name: &str| seen.iter().map(|seen| seen.header(name).unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(of("redrive-attempt"), ["1", "2", "3"]);
    assert_eq!(of("idempotency-key"), ["order/7/order-7"; 3]);
    assert_eq!(of("webhook-id"), [id.to_string(), id.to_string(), id.to_string()]);
    assert!(of("traceparent").iter().all(|t| t.contains("0af7651916cd43dd8448eb211c80319c")));
    assert!(of("user-agent").iter().all(|agent| agent.starts_with("redrive/")));
    let fences = of("redrive-fence");
    let version = |fence: &String| fence.strip_prefix(&format!("{id}-")).unwrap().parse::<u32>().unwrap();
    assert!(fences.iter().map(version).is_sorted_by(|a, b| a < b), "they grow: {fences:?}");
    assert!(seen.iter().all(|seen| seen.body == "{\"order\": 7}" && seen.header("webhook-signature").is_none()));
}

#[tokio::test]
async fn without_a_key_the_id_is_one_and_the_caller_s_own_wins() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let mut request = HttpRequest { method: "put".into(), ..HttpRequest::post(service.url("/echo")) };
    world.deliver(world.call(request.clone())).await;
    request.headers = [("Idempotency-Key".into(), "mine".into()), ("X-Other".into(), "o".into())].into();
    world.deliver(world.call(request.with_body(vec![0xff, 0x00]))).await;
    let seen = service.seen();
    assert_eq!(seen[0].header("idempotency-key"), seen[0].header("webhook-id"));
    assert_eq!((seen[1].header("idempotency-key"), seen[1].header("x-other")), (Some("mine"), Some("o")));
    assert_eq!((seen[1].method.as_str(), &*seen[1].body), ("PUT", &[0xff, 0x00][..]));
}

#[tokio::test]
async fn the_same_key_of_another_business_is_another_request() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let call = || world.call(HttpRequest::post(service.url("/status/200")));
    world.deliver(call().key("pay").business("order", "7")).await;
    world.deliver(call().key("pay").business("order", "8")).await;
    world.engine.call(call().key("pay").business("订/单", "7")).await.unwrap();
    world.deliver(call().business("order", "7")).await;
    let seen = service.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("idempotency-key").unwrap()).collect();
    let alone = format!("order/7/{}", seen[3].header("webhook-id").unwrap());
    assert_eq!(keys, ["order/7/pay", "order/8/pay", "%E8%AE%A2%2F%E5%8D%95/7/pay", &alone]);
}

#[tokio::test]
async fn that_there_is_no_body_is_said_where_one_is_expected() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let to = |method: &str, path: &str| HttpRequest { method: method.into(), ..HttpRequest::post(service.url(path)) };
    for method in ["POST", "put", "PATCH", "GET", "DELETE"] {
        world.deliver(world.call(to(method, "/echo"))).await;
    }
    world.deliver(world.call(to("POST", "/echo").with_body("two"))).await;
    world.deliver(world.call(to("POST", "/redirect/303?/echo"))).await;
    world.deliver(world.call(to("POST", "/redirect/307?/echo"))).await;
    let seen = service.seen();
    let of = |seen: &service::Seen| (seen.method.to_string(), seen.header("content-length").map(str::to_owned));
    let said: Vec<_> = seen.iter().map(of).collect();
    let said: Vec<_> = said.iter().map(|(method, length)| (method.as_str(), length.as_deref())).collect();
    assert_eq!(said[..3], [("POST", Some("0")), ("PUT", Some("0")), ("PATCH", Some("0"))]);
    assert_eq!(said[3..6], [("GET", None), ("DELETE", None), ("POST", Some("3"))]);
    assert_eq!(said[6..8], [("POST", Some("0")), ("GET", None)], "303");
    assert_eq!(said[8..], [("POST", Some("0")), ("POST", Some("0"))], "307");
}

#[tokio::test]
async fn a_service_that_asks_for_a_slower_pace_costs_no_attempt() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    // How long it waits, and whether that used up an attempt.
    let wait = async |path: &str| match world.outcome(HttpRequest::post(service.url(path))).await {
        Became::Waiting(task) => (task.due.since(world.engine.now()), task.attempts, task.postponements),
        other => panic!("{other:?}"),
    };
    let seconds = Duration::from_secs;
    for status in [429, 503] {
        let wait = async |value: &str| wait(&format!("/retry-after/{value}/{status}")).await;
        assert_eq!(wait("120").await, (seconds(120), 0, 1), "{status}");
        for endless in ["31536000", "Fri,%2031%20Dec%202100%2023:59:59%20GMT", "99999999999999999999"] {
            assert_eq!(wait(endless).await, (seconds(300), 0, 1), "{status}, {endless}: bounded");
        }
        for passed in ["0", "Fri,%2031%20Dec%201999%2023:59:59%20GMT"] {
            let (time, attempts, postponements) = wait(passed).await;
            assert!((2..=3).contains(&time.as_secs()) && (attempts, postponements) == (0, 1), "{status}, {passed}");
        }
    }
    for nonsense in ["nonsense", "-5", "1e9", ",,"] {
        let (time, attempts, postponements) = wait(&format!("/retry-after/{nonsense}/429")).await;
        assert!((2..=3).contains(&time.as_secs()) && (attempts, postponements) == (0, 1), "{nonsense}");
        assert_eq!(wait(&format!("/retry-after/{nonsense}/503")).await.1, 1, "{nonsense}: an outage like others");
    }
    assert_eq!(wait("/retry-after/120/500").await.1, 1, "other failures are failures");
    assert_eq!(wait("/retry-after/31536000/500").await.0, seconds(7 * 24 * 3600), "bounded");
}

#[tokio::test]
async fn a_service_that_asks_for_a_slower_pace_for_too_long_is_given_up() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let request = || HttpRequest::post(service.url("/retry-after/120/429"));
    let became = world.outcome_under(request(), &[("max_postponed", "\"1m\""), ("max_attempts", "1")]).await;
    assert_eq!(became.dead().0, "http.429");
    let letters = world.engine.store().dead(&DeadFilter::default(), 1).await.unwrap();
    assert_eq!((letters[0].reason.as_str(), letters[0].task.attempts), ("postponed", 0));
    let rejected = world.outcome_under(request(), &[("no_retry_for", "[\"http.429\"]")]).await;
    assert_eq!(rejected.dead().0, "http.429", "a policy may say that it is not tried again");
    assert_eq!(world.engine.store().dead(&DeadFilter::default(), 1).await.unwrap()[0].reason.as_str(), "rejected");
}

#[tokio::test]
async fn redirects_follow_the_rules_and_are_limited() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let to = |status: u16, at: &str| HttpRequest::post(service.url(&format!("/redirect/{status}?{at}"))).with_body("b");
    assert!(matches!(world.outcome(to(307, "/echo")).await, Became::Done));
    assert!(matches!(world.outcome(to(308, &service.url("/echo"))).await, Became::Done));
    assert!(matches!(world.outcome(to(303, "/echo")).await, Became::Done));
    let became = world.outcome(to(302, "/echo")).await;
    assert_eq!(became.dead().0, "http.302");
    assert!(became.dead().1.contains("its body lost"), "{became:?}");
    let looped = world.outcome(HttpRequest::post(service.url("/loop"))).await;
    assert_eq!(looped.dead().0, "too_many_redirects");
    let seen = service.seen();
    let ends: Vec<_> = seen.iter().filter(|s| s.path == "/echo").map(|s| (s.method.as_str(), &*s.body)).collect();
    assert_eq!(ends, [("POST", &b"b"[..]), ("POST", b"b"), ("GET", b"")]);
    assert_eq!(seen.iter().filter(|s| s.path == "/loop").count(), 4, "the first and three redirects");

    let none = World::new(&format!("{LOOPBACK}max_redirects = 0")).await;
    assert_eq!(none.outcome(to(307, "/echo")).await.dead().0, "http.307");
}

#[tokio::test]
async fn addresses_that_must_not_be_called_are_not() {
    let (allowed, service) = (World::new(LOOPBACK).await, Service::start().await);
    let port = service.port;
    // By redirect: in words, in numbers, as IPv6. Only 127.0.0.1 itself is allowed.
    for to in [
        "http://127.0.0.2",
        "http://2130706434",
        "http://0x7f.2",
        "http://[::1]",
        "http://[::ffff:127.0.0.2]",
        "http://169.254.169.254",
    ] {
        let became =
            allowed.outcome(HttpRequest::post(service.url(&format!("/redirect/307?{to}:{port}/secret")))).await;
        assert_eq!(became.dead().0, "refused_address", "{to}");
    }
    // By a name that resolves to it, which is not seen before it is resolved.
    let closed = World::new("").await;
    let became = closed.outcome(HttpRequest::post(format!("http://localhost:{port}/secret"))).await;
    assert_eq!(became.dead().0, "refused_address");
    assert!(became.dead().1.contains("localhost is at") && became.dead().1.contains("this machine"), "{became:?}");
    assert!(service.seen().iter().all(|seen| seen.path != "/secret"));
    // What was written down before the settings changed.
    let task =
        allowed.call(HttpRequest::post(service.url("/secret"))).into_new_task(&closed.engine.defaults()).unwrap();
    closed.engine.enqueue(task).await.unwrap();
    closed.engine.run_due().await;
    let dead = closed.engine.store().dead(&DeadFilter::default(), 10).await.unwrap();
    assert_eq!(dead.len(), 2);
    assert!(dead.iter().all(|dead| dead.task.last_error.as_ref().unwrap().kind.as_str() == "refused_address"));
    assert!(service.seen().iter().all(|seen| seen.path != "/secret"));
}

fn target(service: &Service) -> String {
    format!(
        "[targets.billing]\nbase_url = '{}'\nallow_private = true\nmax_attempts = 3\nconcurrency = 2\n\
         headers = {{ Authorization = 'Bearer secret-token' }}\n\
         signing_secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_YW5vdGhlciBrZXk='\n",
        service.url("/")
    )
}

#[tokio::test]
async fn a_target_s_requests_are_signed_and_its_secrets_are_nowhere() {
    let service = Service::start().await;
    let world = World::new(&target(&service)).await;
    let became = world.outcome(HttpRequest::to_target("billing", "/tell").with_body("hello")).await;
    assert!(became.dead().1.contains("your *** is wrong"), "{became:?}");
    assert_eq!(world.outcome(HttpRequest::to_target("billing", "/status/503")).await.waiting().0, "http.503");
    world
        .outcome_under(HttpRequest::to_target("billing", "/echo").with_body("secret-token"), &[("keep", "true")])
        .await;

    let bytes = world.call(HttpRequest::to_target("billing", "/tell-bytes"));
    let bytes = world.engine.call(bytes).await.unwrap().body_base64.unwrap();
    assert_eq!(bytes, base64(b"\xff ***"), "also where the answer is not text");

    let store = world.engine.store();
    let (dead, waiting) = (store.dead(&DeadFilter::default(), 9).await.unwrap(), world.engine.waiting().await);
    let kept = store.archive(&ArchiveFilter::default(), 9).await.unwrap();
    assert_eq!((dead.len(), waiting.len(), kept.len()), (1, 1, 1));
    let shown = format!("{dead:?} {waiting:?} {:?}", kept[0].result);
    assert!(!shown.contains("secret-token") && !shown.contains("whsec_"), "{shown}");
    assert_eq!(waiting[0].method, "http.billing");
    assert_eq!(waiting[0].policy.max_attempts, Some(3));

    let first = &service.seen()[0];
    assert_eq!(first.header("authorization"), Some("Bearer secret-token"));
    let signed = |key: &[u8]| {
        let (id, time) = (first.header("webhook-id").unwrap(), first.header("webhook-timestamp").unwrap());
        format!("v1,{}", base64(&hmac_sha256(key, format!("{id}.{time}.hello").as_bytes())))
    };
    let key = [
        0x31, 0xf2, 0x90, 0xf6, 0xbf, 0x06, 0x29, 0x8a, 0xab, 0x4f, 0x08, 0xd4, 0x3c, 0x3f, 0x08, 0x2c, 0xf6, 0x48,
        0xa3, 0x62, 0xda, 0x2d, 0xa4, 0xb0,
    ];
    let both = format!("{} {}", signed(&key), signed(b"another key"));
    assert_eq!(first.header("webhook-signature"), Some(&*both));
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_origin() {
    let (here, elsewhere) = (Service::start().await, Service::start().await);
    let world = World::new(&format!("{LOOPBACK}{}", target(&here))).await;
    let mut request =
        HttpRequest::to_target("billing", format!("/redirect/307?{}", elsewhere.url("/end"))).with_body("hello");
    request.headers = [("X-Api-Key".into(), "mine".into()), ("Content-Type".into(), "text/plain".into())].into();
    assert!(matches!(world.outcome(request).await, Became::Done));
    let there = &elsewhere.seen()[0];
    assert_eq!((there.header("content-type"), &*there.body), (Some("text/plain"), &b"hello"[..]));
    assert!(there.header("webhook-id").is_some());
    for secret in ["authorization", "x-api-key", "webhook-signature"] {
        assert!(here.seen()[0].header(secret).is_some() && there.header(secret).is_none(), "{secret}");
    }
    assert!(matches!(world.outcome(HttpRequest::to_target("billing", "/redirect/307?/end")).await, Became::Done));
    assert_eq!(here.seen().last().unwrap().header("authorization"), Some("Bearer secret-token"), "the same origin");

    // That a target may be at a private address is not said of where it redirects to.
    let closed = World::new(&target(&here)).await;
    let request = HttpRequest::to_target("billing", format!("/redirect/307?{}", elsewhere.url("/end")));
    assert_eq!(closed.outcome(request).await.dead().0, "refused_address");
    assert_eq!(elsewhere.seen().len(), 1);
}

#[tokio::test]
async fn connections_are_kept_alive_and_not_shared_between_guards() {
    let service = Service::start().await;
    let world = World::new(&format!("{LOOPBACK}{}", target(&service))).await;
    for _ in 0..5 {
        world.deliver(world.call(HttpRequest::post(service.url("/echo")).with_body("x"))).await;
    }
    let peers = || service.seen().iter().map(|seen| seen.peer.port()).collect::<std::collections::HashSet<_>>().len();
    assert_eq!((service.seen().len(), peers()), (5, 1));
    world.deliver(world.call(HttpRequest::to_target("billing", "/echo"))).await;
    assert_eq!(peers(), 2);
}

#[tokio::test]
async fn what_is_no_answer_has_a_kind() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let at = |port: u16| HttpRequest::post(format!("http://127.0.0.1:{port}/"));
    let refused = world.outcome(at(NOBODY)).await;
    assert_eq!(refused.waiting().0, "connect");
    assert!(refused.waiting().1.contains("refused"), "{refused:?}");
    let tls = world.outcome(HttpRequest::post(format!("https://127.0.0.1:{}/", service.port))).await;
    assert_eq!(tls.waiting().0, "tls", "{tls:?}");
    let lost = world.outcome(at(bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", true).await)).await;
    assert_eq!(lost.waiting().0, "connect.lost", "{lost:?}");
    let closed = world.outcome(at(bytes(b"", true).await)).await;
    assert_eq!(closed.waiting().0, "connect.lost", "{closed:?}");
    let no_http = world.outcome(at(bytes(b"220 mail.example.org ESMTP\r\n", true).await)).await;
    assert_eq!(no_http.waiting().0, "connect.lost", "{no_http:?}");
    let unknown = HttpRequest::post(format!("http://{}.{}.invalid/", "a".repeat(63), "b".repeat(64)));
    let unresolved = world.outcome(unknown).await;
    assert_eq!(unresolved.waiting().0, "dns", "{unresolved:?}");
}

#[tokio::test]
async fn who_hangs_runs_into_the_time_limit() {
    let world = World::new(LOOPBACK).await;
    let never = bytes(b"", false).await;
    let half = bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", false).await;
    for port in [never, half] {
        let request = HttpRequest::post(format!("http://127.0.0.1:{port}/"));
        let became = world.outcome_under(request, &[("timeout", "\"200ms\"")]).await;
        assert_eq!(became.waiting().0, "timeout", "{became:?}");
    }
}

#[tokio::test]
async fn of_a_big_body_the_beginning_is_kept() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let request = HttpRequest::post(service.url("/big/5000000"));
    assert!(matches!(world.outcome_under(request, &[("keep", "true")]).await, Became::Done));
    let kept = world.engine.store().archive(&ArchiveFilter::default(), 1).await.unwrap();
    let answer: Answer = serde_json::from_str(kept[0].result.as_ref().unwrap()).unwrap();
    assert_eq!((answer.status, answer.truncated, answer.body.unwrap().len()), (200, true, 64 * 1024));
    assert_eq!(answer.headers["content-length"], "5000000");

    // No more is read: this one promises a gigabyte, sends a little, and never goes on.
    let sent = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n".to_vec(), vec![b'x'; 100_000]].concat();
    let endless = HttpRequest::post(format!("http://127.0.0.1:{}/", bytes(sent.leak(), false).await));
    let became = world.outcome_under(endless, &[("timeout", "\"20s\"")]).await;
    assert!(matches!(became, Became::Done), "{became:?}");
}

#[tokio::test]
async fn a_condition_judges_the_answer() {
    let (world, service) = (World::new(LOOPBACK).await, Service::start().await);
    let outcome = async |status: u16, condition: &str| {
        let request = HttpRequest::post(service.url(&format!("/json/{status}")));
        world.outcome_under(request, &[("success_if", &format!("{condition:?}"))]).await
    };
    assert!(matches!(outcome(200, "body.ok && status < 300").await, Became::Done));
    assert!(matches!(outcome(409, "status == 409 || status < 300").await, Became::Done), "it alone decides");
    assert!(matches!(outcome(200, "headers['x-state'] == 'done'").await, Became::Done));
    assert!(matches!(outcome(200, "result.body.ok && result.status == 200").await, Became::Done));
    let unmet = outcome(200, "body.state == 'paid'").await;
    assert_eq!(unmet.waiting().0, "unmet");
    assert!(unmet.waiting().1.contains("200 OK"), "{unmet:?}");
    assert_eq!(outcome(503, "body.state == 'paid'").await.waiting().0, "http.503");
    assert_eq!(outcome(404, "body.state == 'paid'").await.dead().0, "http.404", "not met, and no retry will mend it");
}

#[tokio::test]
async fn a_call_is_tried_at_once_and_made_good_later() {
    let service = Service::start().await;
    let world = World::new(&format!("{LOOPBACK}{}", target(&service))).await;
    let answer = world.engine.call(world.call(HttpRequest::post(service.url("/json/201")))).await.unwrap();
    assert_eq!((answer.status, answer.body.as_deref()), (201, Some(r#"{"ok": true}"#)));

    let rejected = world.engine.call(world.call(HttpRequest::post(service.url("/status/404")))).await.unwrap_err();
    let CallError::Rejected { cause: Cause::Unmet(answer) } = rejected else { panic!("{rejected:?}") };
    assert_eq!(answer.said(), "404 Not Found: this is 404");

    let call = world.call(HttpRequest::to_target("billing", "/then/503,200")).traceparent("00-1-2-01");
    let deferred = world.engine.call(call).await.unwrap_err();
    let CallError::Deferred { task_id, cause: Some(Cause::Unmet(answer)), .. } = deferred else {
        panic!("{deferred:?}")
    };
    assert_eq!(answer.status, 503);
    world.engine.drain().await;
    assert!(world.engine.waiting().await.is_empty());
    let tries: Vec<_> = service.seen().into_iter().filter(|seen| seen.path == "/then/503,200").collect();
    let of = |name: &str| tries.iter().map(|seen| seen.header(name).map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(of("webhook-id"), [Some(task_id.to_string()), Some(task_id.to_string())]);
    assert_eq!(of("redrive-attempt"), [Some("1".into()), Some("2".into())]);
    assert_eq!(of("traceparent"), [Some("00-1-2-01".into()), Some("00-1-2-01".into())]);
}

#[tokio::test]
async fn a_target_that_is_gone_from_the_settings_is_waited_for() {
    let service = Service::start().await;
    let before = World::new(&target(&service)).await;
    let after = World::new("").await;
    let task = before.call(HttpRequest::to_target("billing", "/echo")).into_new_task(&after.engine.defaults()).unwrap();
    after.engine.enqueue(task).await.unwrap();
    assert_eq!(after.engine.run_due().await, 0, "nobody handles it");
    assert_eq!(after.engine.waiting().await.len(), 1);
    assert!(before.engine.handles("http.billing") && !after.engine.handles("http.billing"));
}

#[tokio::test]
async fn a_target_that_hangs_holds_up_nobody_else() {
    let (bad, good) = (Service::start().await, Service::start().await);
    let toml = format!(
        "[engine]\nconcurrency = 4\ngrace = '100ms'\n[targets.bad]\nbase_url = '{}'\nallow_private = true\nconcurrency = 2\ntimeout = '1m'\n\
         max_attempts = 1\n[targets.good]\nbase_url = '{}'\nallow_private = true",
        bad.url("/"),
        good.url("/")
    );
    let settings = Settings::parse(&toml, [].into_iter()).unwrap();
    let delivery = HttpDelivery::new(&settings).unwrap();
    let builder = Engine::builder(Store::open("sqlite::memory:").await.unwrap()).settings(settings);
    let engine = delivery.clone().install(builder).start().await.unwrap();
    let to = |target: &str, path: &str| HttpCall::new(&delivery, HttpRequest::to_target(target, path)).unwrap();
    engine.enqueue_many((0..20).map(|_| to("bad", "/hang"))).await.unwrap();
    bad.wait_for(2).await;
    engine.enqueue(to("good", "/echo")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(120), good.wait_for(1)).await.unwrap();
    assert_eq!(bad.seen().len(), 2, "the first two still hang, and no more were begun");
    engine.stop().await;
}

/// A hundred hosts, named nowhere: one that hangs has more waiting than there are places on the node.
#[tokio::test]
async fn of_a_hundred_hosts_one_that_hangs_holds_up_nobody_else() {
    let (share, room) = (10, 150); // it has never answered
    let toml = format!("{LOOPBACK}[engine]\nconcurrency = {room}\ngrace = '100ms'\n[defaults]\ntimeout = '10m'");
    let settings = Settings::parse(&toml, [].into_iter()).unwrap();
    let delivery = HttpDelivery::new(&settings).unwrap();
    let builder = Engine::builder(Store::open("sqlite::memory:").await.unwrap()).settings(settings);
    let engine = delivery.clone().install(builder).start().await.unwrap();
    let to = |service: &Service, path: &str| HttpCall::new(&delivery, HttpRequest::post(service.url(path))).unwrap();

    let bad = Service::start().await;
    engine.enqueue_many((0..2 * room).map(|_| to(&bad, "/hang"))).await.unwrap();
    bad.wait_for(share).await;
    let mut others = Vec::new();
    for _ in 0..99 {
        others.push(Service::start().await);
    }
    engine.enqueue_many(others.iter().flat_map(|other| (0..5).map(|_| to(other, "/echo")))).await.unwrap();
    for other in &others {
        tokio::time::timeout(Duration::from_secs(60), other.wait_for(5))
            .await
            .expect("it waits for the one that hangs");
    }
    assert_eq!(bad.seen().len(), share, "the first ones still hang, and no more than its share were begun");
    engine.stop().await;
}

/// They have more waiting than there are places on the node, and each of them less than its share.
#[tokio::test]
async fn hosts_that_have_never_answered_leave_room_for_one_that_has() {
    let room = 40;
    let toml = format!("{LOOPBACK}[engine]\nconcurrency = {room}\ngrace = '100ms'\n[defaults]\ntimeout = '10m'");
    let settings = Settings::parse(&toml, [].into_iter()).unwrap();
    let delivery = HttpDelivery::new(&settings).unwrap();
    let builder = Engine::builder(Store::open("sqlite::memory:").await.unwrap()).settings(settings);
    let engine = delivery.clone().install(builder).start().await.unwrap();
    let to = |service: &Service, path: &str| HttpCall::new(&delivery, HttpRequest::post(service.url(path))).unwrap();

    let good = Service::start().await;
    engine.enqueue(to(&good, "/echo")).await.unwrap();
    good.wait_for(1).await;
    let mut bad = Vec::new();
    for _ in 0..10 {
        bad.push(Service::start().await);
    }
    engine.enqueue_many(bad.iter().flat_map(|bad| (0..8).map(|_| to(bad, "/hang")))).await.unwrap();
    let begun = || bad.iter().map(|bad| bad.seen().len()).sum::<usize>();
    let all_that_may = async {
        while begun() < room / 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_that_may).await.expect("half of the node is theirs");
    engine.enqueue_many((0..30).map(|_| to(&good, "/echo"))).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), good.wait_for(31)).await.expect("it waits for those that hang");
    assert_eq!(begun(), room / 2);
    engine.stop().await;
}

/// HMAC-SHA256 as RFC 2104 has it, written out.
fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    assert!(key.len() <= 64, "longer ones would be hashed first");
    let pad = |with: u8| -> Vec<u8> { (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ with).collect() };
    let inner = sha2::Sha256::digest([pad(0x36), text.to_vec()].concat());
    sha2::Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(bytes)
}
