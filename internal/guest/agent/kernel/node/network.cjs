// Settings of the network that came after the start.

let boxCA = '';        // certificates to trust, in PEM
let trusting = false;  // contexts of TLS get boxCA

// Applies variables and the certificate. Node.js reads NODE_EXTRA_CA_CERTS only at its
// start, which was before the box had a certificate.
function network(settings) {
  for (const name of settings.unset || []) delete process.env[name];
  Object.assign(process.env, settings.env);
  boxCA = settings.ca || '';
  if (!boxCA || trusting) return;
  try {
    const tls = require('tls');
    const { createSecureContext } = tls;
    // As with the variable, code that chooses its own certificates does not get ours.
    tls.createSecureContext = function (options) {
      const made = createSecureContext(options);
      if (boxCA && !(options && options.ca)) made.context.addCACert(boxCA);
      return made;
    };
    Module.syncBuiltinESMExports();
    trusting = true;
  } catch (e) {
    report('trust the certificate of the box: ', e);
  }
}
