//! The console in a real browser: Chromium, driven by its own driver. `scripts/test` installs both; without them these tests fail and
//! say so.
//!
//! With REDRIVE_TEST_SCREENSHOTS set to a directory, pictures of every page are left there: see `scripts/screenshots`.

mod acts;
mod driver;
mod pages;
mod shop;
#[allow(dead_code, reason = "shared by several tests")]
#[path = "../support/mod.rs"]
mod support;
mod target;

use redrive::store::{Bulk, Role, TaskAction, TaskFilter, Which};
use redrive::{Clock, Context, Engine, Failure, NewTask, Policy, Verdict};
use serde_json::{Value, json};

use driver::{Browser, PATIENCE};
use support::Server;
use target::Target;

/// Retries that come soon.
const SETTINGS: &str = "[http]\nallow = ['127.0.0.0/8']\n[defaults]\nbackoff = { fixed = '300ms' }\njitter = 'none'";

/// Enqueues by the API; the new task's id.
fn enqueue(server: &Server, task: &Value) -> String {
    let answer = server.api("POST", "/tasks", task);
    assert!(matches!(answer.status, 200 | 201), "{}", answer.body);
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// Ends a story that hangs, with a word instead of silence.
async fn in_time(story: impl Future<Output = ()>) {
    tokio::time::timeout(PATIENCE, Box::pin(story)).await.expect("it took too long");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_task_is_followed_to_its_death_and_brought_back() {
    in_time(async {
        let (server, target) = (Server::start(SETTINGS), Target::down());
        let browser = Browser::open(&server, "en").await;
        browser.log_in(&server.token).await;
        let policy = json!({ "max_attempts": 3, "backoff": { "fixed": "500ms" }, "jitter": "none", "keep": true });
        let task = json!({ "http": { "url": target.url, "body": "{}" }, "key": "order-7", "policy": policy });
        let id = enqueue(&server, &task);
        browser.go(&format!("/tasks/{id}")).await;
        browser.js("window.was_here = true").await;
        browser.until("document.querySelector('main').innerText.includes('Attempt 2 failed')").await;
        browser.until("document.querySelector('main').innerText.includes('Dead: out of attempts')").await;
        assert_eq!(browser.js("return window.was_here").await, true, "the page was not loaded anew");
        target.mend();
        browser.js("document.querySelector('[name=note]').value = 'the service is back'").await;
        browser.click("form[action$=redrive] button.main").await;
        browser.until("document.querySelector('.said')?.innerText.includes('brought back')").await;
        browser.until("document.querySelector('main .tag')?.innerText === 'done'").await;
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_letters_are_brought_back_by_filter_with_progress() {
    in_time(async {
        let server = Server::start(SETTINGS);
        let (store, browser) = (server.store().await, Browser::open(&server, "en").await);
        let clock = Clock::starting_at(store.now().await.unwrap());
        let tasks = (0..1_000).map(|n| NewTask::new("nobody", &n).unwrap()).collect();
        store.insert(tasks, clock.now()).await.unwrap();
        let all = Bulk::tasks(TaskAction::Fail, Which::Filter(TaskFilter::default()), "test");
        store.bulk(all, &clock, |_| std::ops::ControlFlow::Continue(())).await.unwrap();
        browser.log_in(&server.token).await;
        browser.go("/dead?method=nobody").await;
        browser.js("document.querySelector('select[name=which]').value = 'filter'").await;
        browser.click("button[value=redrive]").await;
        browser.until("document.querySelector('h1').innerText.includes('Redrive 1,000 dead letters?')").await;
        let watch = "window.seen = []; const bar = document.querySelector('[data-bar]'); \
                     new MutationObserver(() => window.seen.push(bar.value)) \
                     .observe(document.querySelector('[data-figures]'), { subtree: true, childList: true, characterData: true }); \
                     document.querySelector('[name=rate]').value = 250";
        browser.js(watch).await;
        browser.click("#go").await;
        browser.until("!document.querySelector('[data-end]').hidden").await;
        let done = browser.js("return document.querySelector('[data-figure=done]').innerText").await;
        assert_eq!(done, "1000");
        let between = browser.js("return window.seen.filter((n) => n > 0 && n < 1000).length").await;
        assert!(between.as_u64().unwrap() > 0, "it was seen how far it was");
        assert_eq!(store.overview().await.unwrap().dead.n, 0);
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
    })
    .await;
}

/// Browsers send line breaks in their own way: what groups are found by has none.
#[tokio::test(flavor = "multi_thread")]
async fn letters_whose_error_has_lines_are_brought_back_and_what_goes_wrong_is_said() {
    in_time(async {
        let server = Server::start(SETTINGS);
        let browser = Browser::open(&server, "en").await;
        let fails = |_cx: Context, _n: u32| async {
            Err::<(), _>(Verdict::Failed(Failure::retry("remote", "it failed\r\nno route to the warehouse\r\nbye")))
        };
        let engine =
            Engine::builder(server.store().await).register("lines", fails).discover(false).start().await.unwrap();
        let once = Policy { max_attempts: Some(1), ..Policy::default() };
        for n in 0..3 {
            let id = engine.enqueue(NewTask::new("lines", &n).unwrap().policy(once.clone())).await.unwrap().id;
            while engine.store().get_dead(id).await.unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        }
        engine.stop().await;
        browser.log_in(&server.token).await;
        browser.go("/dead").await;
        browser.click(".needs a[href*='/dead/bulk']").await;
        browser.until("document.querySelector('h1').innerText.includes('Redrive 3 dead letters?')").await;

        browser.js("const rate = document.querySelector('[name=rate]'); rate.type = 'text'; rate.value = 'soon'").await;
        browser.click("#go").await;
        browser.until("document.querySelector('[data-wrong]').innerText.startsWith('Nothing was done: rate:')").await;
        browser
            .js("document.querySelector('[name=rate]').value = ''; window.out = false; \
                    fetch('/logout', { method: 'POST' }).then(() => { window.out = true; })")
            .await;
        browser.until("window.out").await;
        browser.click("#go").await;
        browser.until("document.querySelector('[data-wrong] a')?.innerText === 'Log in'").await;
        assert_eq!(browser.js("return document.querySelector('#go').disabled").await, false, "it can be tried again");

        browser.log_in(&server.token).await;
        browser.go("/dead").await;
        browser.click(".needs a[href*='/dead/bulk']").await;
        browser.until("document.querySelector('#go')").await;
        browser.click("#go").await;
        browser.until("!document.querySelector('[data-end]').hidden").await;
        let done = browser.js("return document.querySelector('[data-figure=done]').innerText").await;
        assert_eq!(done, "3");
        browser.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ticked_and_typed_stays_while_the_page_goes_on() {
    in_time(async {
        let server = Server::start(SETTINGS);
        let browser = Browser::open(&server, "en").await;
        for n in 0..3 {
            enqueue(&server, &json!({ "method": "nobody", "params": n }));
        }
        browser.log_in(&server.token).await;
        browser.go("/tasks").await;
        browser.until("!document.querySelector('[data-pulse]').hidden").await;
        browser.js("document.querySelector('tbody input').checked = true; document.querySelector('#filter').open = true").await;
        browser.js("document.querySelector('[name=key]').value = 'half a wo'").await;
        enqueue(&server, &json!({ "method": "nobody", "params": "one more" }));
        browser.until("document.querySelectorAll('tbody tr').length === 4").await;
        let kept = "return [document.querySelectorAll('tbody input:checked').length, document.querySelector('#filter').open, \
                    document.querySelector('[name=key]').value]";
        assert_eq!(browser.js(kept).await, json!([1, true, "half a wo"]));
        browser.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_reads_in_chinese_and_finds_nothing_to_press() {
    in_time(async {
        let server = Server::start(SETTINGS);
        let (token, _) = server.new_token("eve", Role::Viewer).await;
        let id = enqueue(&server, &json!({ "method": "nobody", "params": { "card": "4242" } }));
        let browser = Browser::open(&server, "zh-CN").await;
        browser.log_in(&token).await;
        assert_eq!(browser.js("return document.documentElement.lang").await, "zh-CN");
        assert_eq!(browser.js("return document.querySelector('h1').innerText").await, "总览");
        browser.go(&format!("/tasks/{id}")).await;
        let buttons = browser.js("return document.querySelectorAll('main button, main input').length").await;
        assert_eq!(buttons, 0);
        let text = browser.js("return document.body.innerText").await;
        assert!(!text.as_str().unwrap().contains("4242"), "{text}");
        browser.click("button[value=en]").await;
        browser.until("document.documentElement.lang === 'en'").await;
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
    })
    .await;
}
