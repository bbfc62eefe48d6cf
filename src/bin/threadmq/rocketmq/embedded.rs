//! A proxy in this process, and a network before it that can be broken.

use threadmq::testkit::Network;
use threadmq::testkit::rocketmq::Proxy;

use crate::outcome::Failure;

pub struct Embedded {
    network: Network,
    // After the network, which is then the first to go.
    proxy: Proxy,
}

impl Embedded {
    pub fn start() -> Result<Self, Failure> {
        let proxy = Proxy::start().map_err(|error| Failure::of("the embedded proxy", &error))?;
        let network = Network::start(proxy.addr(0)).map_err(|error| Failure::of("the embedded network", &error))?;
        // Clients come back through the network after a look-up.
        proxy.advertise(0, network.address());
        Ok(Self { network, proxy })
    }

    pub fn endpoint(&self) -> String {
        self.network.address().to_string()
    }

    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub fn network(&self) -> &Network {
        &self.network
    }
}
