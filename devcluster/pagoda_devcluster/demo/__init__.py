"""The whole product on a dev cluster: images, install, a model, a chat. For the demo and the e2e tests; the product never imports it."""
