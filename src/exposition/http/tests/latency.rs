//! How long a scrape of 10,000 series takes; prints a table where `RUN_SLOW_TESTS` is set, in a release build.

use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::{get, read};
use super::{Running, frames, web};
use crate::exposition::prometheus::{Format, encode};

const SERIES: u32 = 10_000;
const SCRAPES: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_series() {
    if std::env::var_os("RUN_SLOW_TESTS").is_none() {
        crate::skip::skip("RUN_SLOW_TESTS is not set");
        return;
    }
    let server = Running::start(web());
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::with_capacity(256 * 1024, reader);
    let open = "Accept: application/openmetrics-text;version=1.0.0\r\n";
    let frame = frames::large(1, SERIES);
    let begun = Instant::now();
    for _ in 0..SCRAPES {
        std::hint::black_box(encode(&frame.families, Format::Text));
    }
    println!("rendering alone: {:?}", begun.elapsed() / u32::try_from(SCRAPES).unwrap());
    println!("| scrape of {SERIES} series | bytes | p50 ms | p99 ms |");
    for (name, path, headers) in [
        ("text", "/metrics", String::new()),
        ("OpenMetrics", "/metrics", open.to_owned()),
        ("OpenMetrics, gzip", "/metrics", format!("{open}Accept-Encoding: gzip\r\n")),
        ("JSON", "/api/v1/frame", String::new()),
    ] {
        for fresh in [true, false] {
            let mut times = Vec::new();
            let mut bytes = 0;
            for sequence in 0..SCRAPES {
                if fresh || sequence == 0 {
                    server.frames.send(Some(frames::large(sequence, SERIES))).unwrap();
                }
                let begun = Instant::now();
                writer.write_all(get(path, &headers).as_bytes()).await.unwrap();
                let reply = read(&mut reader, false).await.unwrap();
                assert_eq!(reply.status, 200);
                bytes = reply.body.len();
                if fresh || sequence > 0 {
                    times.push(begun.elapsed());
                }
            }
            times.sort_unstable();
            let share = |share: usize| -> Duration { times[(times.len() - 1) * share / 100] };
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let kind = if fresh { "first of its frame" } else { "shared" };
            println!("| {name}, {kind} | {bytes} | {:.2} | {:.2} |", ms(share(50)), ms(share(99)));
        }
    }
}
