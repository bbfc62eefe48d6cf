//! A network before a broker that can be broken by hand.
//!
//! `cargo run --features testkit --example testkit_network -- 127.0.0.1:6650 127.0.0.1:6656`
//!
//! forwards from the first address to the second. The broker has to name the first in its look-up answers. Commands
//! come on standard input, one a line: `half-open`, `cut`, `reset`, `freeze`, `thaw`, `links`, `quit`.

use std::io::BufRead;

use threadmq::testkit::Network;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (arguments.next(), arguments.next()) else {
        return Err("usage: testkit_network LISTEN UPSTREAM".into());
    };
    let network = Network::listen_on(listen, upstream)?;
    println!("{}", network.url());
    for line in std::io::stdin().lock().lines() {
        match line?.trim() {
            "half-open" => network.half_open(),
            "cut" => network.cut(),
            "reset" => network.reset(),
            "freeze" => network.freeze(),
            "thaw" => network.thaw(),
            "links" => println!("{}", network.links()),
            "quit" => break,
            other => eprintln!("unknown command {other:?}"),
        }
    }
    Ok(())
}
