// Settings of the network that came after the start.

let boxCA = '';        // certificates of the settings to trust, in PEM
let bundle = '';       // path of a file with them and the image's, as new programs get it
let added = null;      // what contexts of TLS trust besides Node.js' own authorities, in PEM; null: not made yet
let trusting = false;  // contexts of TLS get what is added

const maxBundle = 8 << 20; // bytes: the image's authorities and those of the settings have 4 MiB and less

// Applies variables and the certificates. Node.js reads NODE_EXTRA_CA_CERTS only at its
// start, which was before the box had a certificate.
function network(settings) {
  for (const name of settings.unset || []) delete process.env[name];
  Object.assign(process.env, settings.env);
  boxCA = settings.ca || '';
  bundle = (settings.env && settings.env.NODE_EXTRA_CA_CERTS) || '';
  added = null;
  if (!boxCA || trusting) return;
  try {
    const tls = require('tls');
    const { createSecureContext } = tls;
    // As with the variable, code that chooses its own certificates does not get ours.
    tls.createSecureContext = function (options) {
      const made = createSecureContext(options);
      if (boxCA && !(options && options.ca)) {
        if (added === null) added = boxCA + '\n' + bundled(tls.rootCertificates);
        made.context.addCACert(added);
      }
      return made;
    };
    Module.syncBuiltinESMExports();
    trusting = true;
  } catch (e) {
    report('trust the certificate of the box: ', e);
  }
}

// Returns the certificates of the bundle that are not among those of Node.js, in PEM. A context
// that gets a certificate loses those that Node.js read at its start, such as the image's. Few
// are left, so that a context costs little.
function bundled(roots) {
  if (!bundle) return '';
  try {
    if (fs.statSync(bundle).size > maxBundle) return '';
    const bare = (pem) => pem.replace(/\s+/g, '');
    const known = new Set(roots.map(bare));
    const all = fs.readFileSync(bundle, 'latin1').match(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g) || [];
    return all.filter((pem) => !known.has(bare(pem))).join('\n') + '\n';
  } catch (e) {
    report('trust the authorities of the image: ', e);
    return '';
  }
}
