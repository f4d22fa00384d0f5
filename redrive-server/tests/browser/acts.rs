//! What people do in their browser besides following tasks: settings, guarded rows, gates, sagas, channels.

use redrive::store::{AuditFilter, Audited};
use serde_json::json;

use crate::driver::Browser;
use crate::in_time;
use crate::shop::Shop;

impl Shop {
    /// The last thing of this kind that people did.
    async fn last(&self, action: &str) -> Audited {
        let filter = AuditFilter { action: Some(action.into()), ..AuditFilter::default() };
        self.server.store().await.audits(&filter, 1).await.unwrap().swap_remove(0)
    }
}

/// A browser of an admin, in which questions are answered with yes.
async fn admin(shop: &Shop) -> Browser {
    let browser = Browser::open(&shop.server, "en").await;
    browser.log_in(&shop.server.token).await;
    browser
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_is_changed_after_a_look_at_what_would_change() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = admin(&shop).await;
        browser.go("/settings").await;
        browser.js("document.querySelector('[name=path]').value = 'engine.scan_interval'").await;
        browser.js("document.querySelector('[name=value]').value = 'soon'").await;
        browser.click("form[action='/settings/change'] button.main").await;
        browser.until("document.querySelector('[role=alert]')?.innerText.includes('scan_interval')").await;
        assert_eq!(browser.js("return document.querySelector('#save')").await, json!(null), "that cannot be saved");
        browser.js("document.querySelector('textarea[name=value]').value = '2s'").await;
        browser.click("form[action='/settings/change'] button.main").await;
        browser.until("document.querySelector('#save')").await;
        let diff = "return [...document.querySelectorAll('del, ins')].map((part) => part.textContent)";
        assert_eq!(browser.js(diff).await, json!(["before: 5s", "after: 2s"]));
        assert!(shop.server.store().await.set_fields().await.unwrap().is_empty(), "looking changes nothing");
        browser.click("#save").await;
        browser.until("document.querySelector('.said')?.innerText.includes('engine.scan_interval')").await;
        let set = shop.last("settings.set").await.entry;
        assert_eq!((set.before, set.after), (None, Some(json!("2s"))));
        browser.go("/audit?action=settings.").await;
        browser.until("document.querySelector('tbody ins')?.innerText.includes('2s')").await;
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
        shop.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_needs_people_is_closed_by_one() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = admin(&shop).await;
        browser.go("/guards").await;
        browser.click("a[href='/guards/Bills?status=4001']").await;
        browser.click("a[href$='/rows/5010']").await;
        browser.click("form[action$=success] button").await;
        browser.page.accept_alert().await.unwrap();
        browser.until("document.querySelector('main .tag.good')?.innerText.startsWith('2002')").await;
        assert_eq!(shop.last("guard.").await.entry.target, "Bills 5010");
        browser.click("a[href='/guards/Bills']").await;
        browser.until("document.querySelectorAll('tbody tr').length === 4").await;
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
        shop.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_is_released_and_a_method_goes_on() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = admin(&shop).await;
        browser.go("/methods").await;
        let gate = "[...document.querySelectorAll('.gate')].find((gate) => gate.querySelector('.what').innerText.startsWith('http.crm'))";
        // In one go: the page is live, and may be drawn anew at any time.
        browser.js(&format!("const gate = {gate}; gate.querySelector('details').open = true; gate.querySelector('button.main').click()")).await;
        browser.until(&format!("document.querySelector('.said') && !{gate}.innerText.includes('held')")).await;
        assert_eq!(shop.last("gate.").await.entry.action, "gate.release");
        browser.click("form[action='/methods/search.index/resume'] button").await;
        browser.until("document.querySelector('.said')?.innerText.includes('search.index')").await;
        assert_eq!(shop.last("method.").await.entry.action, "method.resume");
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
        shop.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saga_is_told_what_it_waits_for_and_goes_on_live() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = admin(&shop).await;
        browser.go("/sagas/refund-302").await;
        browser.click("form[action$=signal] button").await;
        browser.until("document.querySelector('main .tag')?.innerText === 'succeeded'").await;
        let done = browser.js("return document.querySelectorAll('.graph .step.done').length").await;
        assert_eq!(done, 4);
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.close().await;
        shop.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_tried_and_say_what_came_of_it() {
    in_time(async {
        let shop = Shop::open().await;
        let browser = admin(&shop).await;
        browser.go("/channels").await;
        browser.click("form[action='/channels/chat/test'] button").await;
        browser.until("document.querySelector('.said')?.innerText.includes('chat')").await;
        assert_eq!(browser.complaints().await, [""; 0]);
        browser.click("form[action='/channels/pager/test'] button").await;
        browser.until("document.querySelector('[role=alert]')?.innerText.includes('503')").await;
        assert_eq!(shop.last("channel.test").await.entry.after.unwrap()["taken"], false);
        browser.close().await;
        shop.close().await;
    })
    .await;
}
