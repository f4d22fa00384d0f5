//! The console in a real browser: Chromium, driven by its own driver. `scripts/test` installs both; without them these tests fail and
//! say so.
//!
//! With REDRIVE_TEST_SCREENSHOTS set to a directory, pictures of every page are left there: see `scripts/screenshots`.

mod stage;

use redrive::store::{Bulk, Role, TaskAction, TaskFilter, Which};
use redrive::{Clock, NewTask};
use serde_json::json;

use stage::{Browser, PATIENCE, Server, Target};

/// Ends a story that hangs, with a word instead of silence.
async fn in_time(story: impl Future<Output = ()>) {
    tokio::time::timeout(PATIENCE * 2, Box::pin(story)).await.expect("it took too long");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_task_is_followed_to_its_death_and_brought_back() {
    in_time(async {
        let (server, target) = (Server::start(), Target::down());
        let browser = Browser::open(&server, "en").await;
        browser.log_in(&server.token).await;
        let policy = json!({ "max_attempts": 3, "backoff": { "fixed": "500ms" }, "jitter": "none", "keep": true });
        let task = json!({ "http": { "url": target.url, "body": "{}" }, "key": "order-7", "policy": policy });
        let id = server.enqueue(&task);
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
        let server = Server::start();
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

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ticked_and_typed_stays_while_the_page_goes_on() {
    in_time(async {
        let server = Server::start();
        let browser = Browser::open(&server, "en").await;
        for n in 0..3 {
            server.enqueue(&json!({ "method": "nobody", "params": n }));
        }
        browser.log_in(&server.token).await;
        browser.go("/tasks").await;
        browser.until("!document.querySelector('[data-pulse]').hidden").await;
        browser.js("document.querySelector('tbody input').checked = true; document.querySelector('#filter').open = true").await;
        browser.js("document.querySelector('[name=key]').value = 'half a wo'").await;
        server.enqueue(&json!({ "method": "nobody", "params": "one more" }));
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
        let server = Server::start();
        let store = server.store().await;
        let made = store.create_token("eve", Role::Viewer, None, "test", store.now().await.unwrap()).await.unwrap();
        let id = server.enqueue(&json!({ "method": "nobody", "params": { "card": "4242" } }));
        let browser = Browser::open(&server, "zh-CN").await;
        browser.log_in(made.secret.reveal()).await;
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

/// Every page, in both themes, on a desk and on a phone: nothing is complained of.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_can_be_used_by_everybody() {
    in_time(async {
        let (server, target) = (Server::start(), Target::down());
        let browser = Browser::open(&server, "en").await;
        let once = json!({ "max_attempts": 1 });
        let letter =
            json!({ "http": { "url": target.url }, "policy": once, "business_type": "order", "business_id": "7" });
        let dead = server.enqueue(&letter);
        let long = "x".repeat(200);
        let waits =
            server.enqueue(&json!({ "method": "nobody.handles.this", "params": { "long": long }, "key": long }));
        browser.go("/login").await;
        check(&browser, "login", &[]).await;
        browser.log_in(&server.token).await;
        browser.go(&format!("/tasks/{dead}")).await;
        browser.until("document.querySelector('main').innerText.includes('Dead: out of attempts')").await;
        let pages = [
            ("overview", "/".to_owned()),
            ("tasks", "/tasks?method=nobody.handles.this".into()),
            ("task", format!("/tasks/{waits}")),
            ("dead", "/dead".into()),
            ("dead-filter", "/dead?method=http".into()),
            ("letter", format!("/dead/{dead}")),
            ("bulk", "/dead/bulk?action=discard&which=filter&method=http".into()),
            ("empty", "/tasks?method=none".into()),
        ];
        for (name, path) in pages {
            browser.go(&path).await;
            check(&browser, name, &[]).await;
        }
        browser.go("/nothing").await;
        check(&browser, "missing", &["404 (Not Found)"]).await;
        browser.close().await;
    })
    .await;
}

/// Looks at the page as it is; `expected` is what the browser may say of it.
async fn check(browser: &Browser, name: &str, expected: &[&str]) {
    for theme in ["light", "dark"] {
        for width in [1280, 375] {
            browser.look(width, theme).await;
            let wrong = browser.js(include_str!("check.js")).await;
            assert_eq!(wrong, json!([]), "{name}, {theme}, {width} px");
            browser.picture(&format!("{name}-{theme}-{width}")).await;
        }
    }
    let complaints = browser.complaints().await;
    let bad: Vec<_> = complaints.iter().filter(|said| !expected.iter().any(|known| said.contains(known))).collect();
    assert_eq!(bad, [""; 0], "{name}");
}
